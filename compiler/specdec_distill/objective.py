"""What a draft is trained on: how far its distribution is from the champion's, position by position.

p is the champion's distribution, q the draft's, both from hidden states and a frozen head. Losses:
  kl   KL(p || q) (knowledge distillation, Hinton et al. 2015; for drafts: DistillSpec, Zhou et al. 2023, section 3)
  tv   half of |p - q|: 1 - tv is the chance that a draft is accepted (exactness.md F4; DistillSpec's TVD)
The selective filter is AdaSPEC's (Hu et al. 2025, section 3.2): a reference draft of the same shape was trained before; of every CHUNK
of positions the share `keep` where loss(draft) - loss(reference) is largest is learned, the rest is left out.
Memory: logits [CHUNK, V] of a chunk of positions at a time; gradients go to the hidden states at once, the head has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

CHUNK = 4096


@dataclass(frozen=True)
class Objective:
    """tv: weight of the tv loss beside 1 - tv of kl; keep: share of positions the filter keeps (1: all)."""

    tv: float = 0.0
    keep: float = 1.0


def _losses(
    student: torch.Tensor, teacher: torch.Tensor, tv: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits [n, V] of both -> kl [n], agreement of the likeliest ids [n], gradient of (1 - tv) KL + tv * TV by the student's."""
    log_q = student.float().log_softmax(-1)
    log_p = teacher.float().log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    kl = (p * (log_p - log_q)).sum(-1)
    same = (student.argmax(-1) == teacher.argmax(-1)).float()
    grad = (1 - tv) * (q - p)
    if tv:
        sign = 0.5 * torch.sign(q - p)
        grad = grad + tv * q * (sign - (q * sign).sum(-1, keepdim=True))
    return kl, same, grad.to(student.dtype)


def _kl(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    log_q = student.float().log_softmax(-1)
    log_p = teacher.float().log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


class Measure:
    """Losses of hidden states against the champion's, through one frozen head [V, D]."""

    def __init__(self, head: torch.Tensor) -> None:
        self._head = head
        fuse = head.device.type == "cuda"
        self._losses = torch.compile(_losses, dynamic=True) if fuse else _losses
        self._kl = torch.compile(_kl, dynamic=True) if fuse else _kl

    def backward(
        self,
        student: torch.Tensor,
        teacher: torch.Tensor,
        objective: Objective,
        reference: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [n, D] of each -> (mean kl, mean agreement), and gradients flow into `student`."""
        grads, kls, sames = [], [], []
        with torch.no_grad():
            for start in range(0, len(student), CHUNK):
                part = slice(start, start + CHUNK)
                ours, theirs = student[part] @ self._head.T, teacher[part] @ self._head.T
                kl, same, grad = self._losses(ours, theirs, objective.tv)
                kls.append(kl)
                sames.append(same)
                grads.append(self._filtered(grad, kl, theirs, objective, reference, part) @ self._head)
            scale = len(student) * objective.keep
            student_grad = torch.cat(grads) / scale
        student.backward(student_grad)
        return torch.cat(kls).mean(), torch.cat(sames).mean()

    def _filtered(
        self,
        grad: torch.Tensor,
        kl: torch.Tensor,
        theirs: torch.Tensor,
        objective: Objective,
        reference: torch.Tensor | None,
        part: slice,
    ) -> torch.Tensor:
        if objective.keep >= 1 or reference is None:
            return grad
        gap = kl - self._kl(reference[part] @ self._head.T, theirs)
        kept = max(1, round(objective.keep * len(gap)))
        least = gap.topk(kept).values[-1]
        return grad * (gap >= least)[:, None]

    @torch.no_grad()
    def agreement(
        self, student: torch.Tensor, teacher: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Per position: kl [n], whether the likeliest ids agree [n], the draft's log-probability of its likeliest id [n]."""
        kls, sames, sures = [], [], []
        for start in range(0, len(student), CHUNK):
            part = slice(start, start + CHUNK)
            ours = student[part] @ self._head.T
            kl, same, _ = self._losses(ours, teacher[part] @ self._head.T, 0.0)
            kls.append(kl)
            sames.append(same)
            sures.append(ours.float().log_softmax(-1).amax(-1))
        return torch.cat(kls), torch.cat(sames), torch.cat(sures)
