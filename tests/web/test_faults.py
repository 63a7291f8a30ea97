"""What goes wrong ends in a typed error that names the place, never in a hang; a good load after it works."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import pytest
from conftest import BrowserRig
from fake_bundle import EXPORTS, SOURCES, compile_wasm, fake_greedy, write_manifest
from specdec_runtime.faults import ArtifactError, DeviceFault, SpecdecError
from specdec_tools.browser import BrowserOptions
from specdec_tools.serve import Handler

pytestmark = pytest.mark.browser

PROMPT_IDS = [72, 101, 108, 108, 111]
LONG_IDS = [33 + index * 7 % 90 for index in range(400)]
REQUEST = {"prompt_ids": PROMPT_IDS, "max_tokens": 20, "drafter": "model", "k": 4}


def _edit_plan(bundle: Path, edit: Callable[[dict], object]) -> None:
    plan = json.loads((bundle / "plan.json").read_text())
    edit(plan)
    (bundle / "plan.json").write_text(json.dumps(plan))
    write_manifest(bundle)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _is(error: SpecdecError, family: type[SpecdecError], *words: str) -> None:
    assert type(error) is family, error
    for word in words:
        assert word in str(error), error


@pytest.mark.parametrize("backend", ["wasm", "webgpu"])
def test_a_flipped_byte_in_a_shard(rig: BrowserRig, bundle_copy: Path, backend: str) -> None:
    _flip(bundle_copy / "weights" / "0001.bin")
    _is(rig.load_fault(bundle_copy, backend), ArtifactError, "weights/0001.bin", "sha256")


def test_files_that_are_short_long_or_gone(rig: BrowserRig, bundle_copy: Path) -> None:
    site = rig.site(bundle_copy)
    session = rig.page(site.url, "wasm")
    shard = bundle_copy / "weights" / "0002.bin"
    whole = shard.read_bytes()

    def fault() -> SpecdecError:
        with pytest.raises(SpecdecError) as caught:
            rig.do(session.load("/bundle/"))
        return caught.value

    shard.write_bytes(whole[:-4])
    _is(fault(), ArtifactError, "weights/0002.bin", "8188")
    shard.write_bytes(whole + b"more")
    _is(fault(), ArtifactError, "weights/0002.bin", "8196")
    shard.unlink()
    _is(fault(), ArtifactError, "404", "weights/0002.bin")
    shard.write_bytes(whole)
    rig.do(session.load("/bundle/"))  # the same page recovers
    assert rig.do(session.generate(REQUEST))["token_ids"] == fake_greedy(PROMPT_IDS, 20)


def test_manifests_and_plans_that_are_wrong(rig: BrowserRig, fake_bundle: Path, bundle_copy: Path) -> None:
    bundle = bundle_copy
    session = rig.page(rig.site(bundle).url, "wasm")

    def fault(edit: Callable[[], object]) -> SpecdecError:
        shutil.rmtree(bundle)
        shutil.copytree(fake_bundle, bundle)
        edit()
        with pytest.raises(SpecdecError) as caught:
            rig.do(session.load("/bundle/"))
        return caught.value

    def edit_manifest(change: dict) -> None:
        manifest = json.loads((bundle / "manifest.json").read_text())
        (bundle / "manifest.json").write_text(json.dumps(manifest | change))

    _is(fault(lambda: edit_manifest({"extra": 1})), ArtifactError, "extra", "manifest.json")
    _is(fault(lambda: edit_manifest({"version": 2})), ArtifactError, "version")
    _is(fault(lambda: (bundle / "manifest.json").write_text("<html>")), ArtifactError, "manifest.json")
    unknown = fault(lambda: _edit_plan(bundle, lambda plan: plan["models"][0].update(rope=1)))
    _is(unknown, ArtifactError, "unknown key", "$.models[0].rope")
    shorter = fault(lambda: _edit_plan(bundle, lambda plan: plan["targets"][0]["buffers"][5]["files"].pop()))
    _is(shorter, ArtifactError, "8192 bytes")
    feature = fault(
        lambda: _edit_plan(bundle, lambda plan: plan["targets"][0]["features"].append("teleport"))
    )
    _is(feature, ArtifactError, "teleport")
    no_template = fault(lambda: ((bundle / "chat_template.jinja").unlink(), write_manifest(bundle)))
    _is(no_template, ArtifactError, "chat_template.jinja")
    template = fault(
        lambda: ((bundle / "chat_template.jinja").write_text("{% for %}"), write_manifest(bundle))
    )
    _is(template, ArtifactError, "template")
    tokenizer = fault(lambda: ((bundle / "tokenizer.json").write_text("{}"), write_manifest(bundle)))
    _is(tokenizer, ArtifactError, "tokenizer")


def test_memory_that_does_not_fit_is_refused_with_numbers(rig: BrowserRig, bundle_copy: Path) -> None:
    def grow(plan: dict) -> None:
        for target in plan["targets"]:
            next(buffer for buffer in target["buffers"] if buffer["name"] == "target.kv")["bytes"] = 5 * 2**30

    _edit_plan(bundle_copy, grow)
    _is(rig.load_fault(bundle_copy, "wasm"), DeviceFault, "MiB of memory are needed, at most 4095.9 MiB")
    _is(rig.load_fault(bundle_copy, "webgpu"), DeviceFault, "MiB of GPU memory")


def test_wasm_modules_that_break_the_contract(rig: BrowserRig, bundle_copy: Path) -> None:
    module = bundle_copy / "kernels.wasm"
    session = rig.page(rig.site(bundle_copy).url, "wasm")

    def fault() -> SpecdecError:
        write_manifest(bundle_copy)
        with pytest.raises(SpecdecError) as caught:
            rig.do(session.load("/bundle/"))
        return caught.value

    module.write_bytes(b"\0asm\1\0\0\0")
    _is(fault(), ArtifactError, "env.memory")
    module.write_bytes(b"no module")
    _is(fault(), ArtifactError, "compile")
    text = (SOURCES / "kernels.c").read_text()
    source = bundle_copy.parent / "kernels.c"
    source.write_text(text)
    for missing in ("__heap_base", "score"):
        compile_wasm(source, module, exports=tuple(name for name in EXPORTS if name != missing))
        _is(fault(), ArtifactError, missing)
    imported = '__attribute__((import_module("env"), import_name("odd"))) int odd(void);\n'
    source.write_text(imported + text.replace("i32 id = next_id", "i32 id = odd() + next_id"))
    compile_wasm(source, module)
    _is(fault(), ArtifactError, "env.odd")
    source.write_text(text.replace("i32 id = next_id", "__builtin_trap(); i32 id = next_id"))
    compile_wasm(source, module)
    write_manifest(bundle_copy)
    rig.do(session.load("/bundle/"))
    with pytest.raises(DeviceFault):
        rig.do(session.generate(REQUEST))


def test_wgsl_that_is_wrong(rig: BrowserRig, bundle_copy: Path) -> None:
    wgsl = bundle_copy / "kernels.wgsl"
    text = wgsl.read_text()
    assert text.count("first = x; }") == 1
    wgsl.write_text(text.replace("first = x; }", "first = y; }"))
    write_manifest(bundle_copy)
    _is(rig.load_fault(bundle_copy, "webgpu"), ArtifactError, "WGSL", "score, line")
    wgsl.write_text(text.replace("fn feedback", "fn feedbacc"))
    write_manifest(bundle_copy)
    _is(rig.load_fault(bundle_copy, "webgpu"), DeviceFault, "feedback")


BINDING = "maxStorageBufferBindingSize"


def test_webgpu_limits_that_the_device_lacks(rig: BrowserRig, bundle_copy: Path) -> None:
    _edit_plan(
        bundle_copy, lambda plan: plan["targets"][1]["limits"].update(maxStorageBuffersPerShaderStage=4000)
    )
    _is(rig.load_fault(bundle_copy, "webgpu"), DeviceFault, "maxStorageBuffersPerShaderStage", "4000")
    gpu = json.loads((bundle_copy / "plan.json").read_text())["targets"][1]
    largest = max(gpu["tensors"], key=lambda tensor: 4 * prod(tensor["shape"]))  # all are of 4-byte numbers
    size = 1 << 50
    _edit_plan(bundle_copy, lambda plan: plan["targets"][1].update(limits={BINDING: size}))
    _is(
        rig.load_fault(bundle_copy, "webgpu"), DeviceFault, f"{BINDING} {size} for {largest['name']} (it has "
    )
    _edit_plan(bundle_copy, lambda plan: plan["targets"][1].update(limits={"maxBufferSize": size}))
    buffer = max(gpu["buffers"], key=lambda buffer: buffer["bytes"])
    _is(rig.load_fault(bundle_copy, "webgpu"), DeviceFault, f"maxBufferSize {size} for {buffer['name']} ")
    _edit_plan(bundle_copy, lambda plan: plan["targets"][1].update(features=["no-such-feature"], limits={}))
    _is(rig.load_fault(bundle_copy, "webgpu"), DeviceFault, "no-such-feature")


def test_auto_takes_wasm_where_the_gpu_is_software(rig: BrowserRig, fake_bundle: Path) -> None:
    session = rig.page(rig.site(fake_bundle).url, "auto")
    loaded = rig.do(session.load("/bundle/"))
    assert loaded["device"]["backend"] == "wasm"
    assert "software" in loaded["reason"]


HARDWARE = {
    "executor/device.js": [("text, software };", "text, software: false };")]
}  # SwiftShader, taken for a real GPU


def test_auto_takes_the_gpu_and_leaves_it_when_it_fails(
    rig: BrowserRig, fake_bundle: Path, patched_web, tmp_path: Path
) -> None:
    web = patched_web(HARDWARE)
    session = rig.page(rig.site(fake_bundle, web=web).url, "auto")
    loaded = rig.do(session.load("/bundle/"))
    assert (loaded["device"]["backend"], loaded["reason"]) == ("webgpu", "")
    for drafter in ("off", "model"):  # a prompt of many chunks, which run ahead of the answers
        result = rig.do(session.generate(REQUEST | {"prompt_ids": LONG_IDS, "drafter": drafter}))
        assert result["token_ids"] == fake_greedy(LONG_IDS, 20)
    script = web / "executor" / "webgpu.js"
    broken = script.read_text().replace("await executor.makeBuffers();", "throw new DeviceFault('no room');")
    script.write_text(broken)
    session = rig.page(rig.site(fake_bundle, web=web).url, "auto")
    loaded = rig.do(session.load("/bundle/"))
    assert (loaded["device"]["backend"], loaded["reason"]) == ("wasm", "no room")
    assert rig.do(session.generate(REQUEST))["token_ids"] == fake_greedy(PROMPT_IDS, 20)


def test_device_lost_in_the_middle(rig: BrowserRig, fake_bundle: Path, patched_web) -> None:
    once = "(globalThis.submits = (globalThis.submits ?? 0) + 1) === 5"
    lose = f"if ({once}) this.device.destroy();\n    this.device.queue.submit("
    web = patched_web({"executor/webgpu.js": [("this.device.queue.submit(", lose)]})
    session = rig.loaded(fake_bundle, "webgpu", web=web)
    with pytest.raises(DeviceFault, match="lost"):
        rig.do(session.generate(REQUEST | {"drafter": "off"}))
    with pytest.raises(DeviceFault):
        rig.do(session.generate(REQUEST))  # the device stays lost, and says so
    rig.do(session.load("/bundle/"))
    assert rig.do(session.generate(REQUEST))["token_ids"] == fake_greedy(PROMPT_IDS, 20)


@pytest.mark.parametrize("submit", [1, 5, 12])
def test_device_lost_while_a_prompt_is_read(
    rig: BrowserRig, fake_bundle: Path, patched_web, submit: int
) -> None:
    """Chunks run ahead of their answers; the loss of one is an answer all the same, of this request."""
    once = f"(globalThis.submits = (globalThis.submits ?? 0) + 1) === {submit}"
    lose = f"if ({once}) this.device.destroy();\n    this.device.queue.submit("
    web = patched_web(HARDWARE | {"executor/webgpu.js": [("this.device.queue.submit(", lose)]})
    session = rig.loaded(fake_bundle, "webgpu", web=web)
    with pytest.raises(DeviceFault, match="lost"):
        rig.do(session.generate(REQUEST | {"prompt_ids": LONG_IDS}))
    rig.do(session.load("/bundle/"))
    assert rig.do(session.generate(REQUEST))["token_ids"] == fake_greedy(PROMPT_IDS, 20)


def test_validation_error_in_a_submit(rig: BrowserRig, fake_bundle: Path, patched_web) -> None:
    web = patched_web({"executor/webgpu.js": [("grid[0], grid[1]", "grid[0] * 70000, grid[1]")]})
    session = rig.page(rig.site(fake_bundle, web=web).url, "webgpu")
    with pytest.raises(DeviceFault, match="workgroup"):
        rig.do(session.load("/bundle/"))  # the self-test meets it
    rig.do(session.load("/bundle/", selftest=False))
    with pytest.raises(DeviceFault, match="workgroup"):
        rig.do(session.generate(REQUEST))


def test_device_lost_in_the_self_test(rig: BrowserRig, fake_bundle: Path, patched_web) -> None:
    once = "(globalThis.submits = (globalThis.submits ?? 0) + 1) === 7"
    lose = f"if ({once}) this.device.destroy();\n    this.device.queue.submit("
    web = patched_web({"executor/row_probe.js": [("this.device.queue.submit(", lose)]})
    session = rig.page(rig.site(fake_bundle, web=web).url, "webgpu")
    with pytest.raises(DeviceFault, match="lost"):
        rig.do(session.load("/bundle/"))
    rig.do(session.load("/bundle/"))
    assert rig.do(session.generate(REQUEST))["token_ids"] == fake_greedy(PROMPT_IDS, 20)


def test_a_kernel_that_never_ends(rig: BrowserRig, bundle_copy: Path, patched_web) -> None:
    """No thread can stop a WASM loop: the page ends the worker, and a new load works."""
    source = bundle_copy.parent / "kernels.c"
    text = (SOURCES / "kernels.c").read_text()
    source.write_text(text.replace("i32 id = next_id", "for (volatile int i = 0;; i++); i32 id = next_id"))
    compile_wasm(source, bundle_copy / "kernels.wasm")
    write_manifest(bundle_copy)
    web = patched_web({"page/client.js": [("wasm: 180000", "wasm: 1500")]})
    session = rig.loaded(bundle_copy, "wasm", web=web)
    with pytest.raises(DeviceFault, match="said nothing"):
        rig.do(session.generate(REQUEST))
    compile_wasm(SOURCES / "kernels.c", bundle_copy / "kernels.wasm")
    write_manifest(bundle_copy)
    rig.do(session.load("/bundle/"))
    assert rig.do(session.generate(REQUEST))["token_ids"] == fake_greedy(PROMPT_IDS, 20)


class _Silent(Handler):
    """Does not answer for one file."""

    def send_head(self):
        if self.path.endswith("0001.bin"):
            time.sleep(8)
        return super().send_head()


class _Stalling(Handler):
    """Sends the beginning of one file, then nothing."""

    def copyfile(self, source, outputfile) -> None:
        if self.path.endswith("0001.bin"):
            outputfile.write(source.read(100))
            outputfile.flush()
            time.sleep(8)
        super().copyfile(source, outputfile)


@pytest.mark.parametrize(("handler", "words"), [(_Silent, "no answer"), (_Stalling, "stalled")])
def test_a_server_that_stops_answering(
    rig: BrowserRig, fake_bundle: Path, patched_web, handler, words: str
) -> None:
    web = patched_web({"executor/bundle.js": [("STALL_MS = 30000", "STALL_MS = 4000")]})
    _is(rig.load_fault(fake_bundle, "wasm", web=web, handler=handler), ArtifactError, words, "0001.bin")


def test_a_page_whose_parts_are_missing(rig: BrowserRig, fake_bundle: Path, patched_web) -> None:
    web = patched_web({})
    (web / "vendor" / "runtime" / "specdec_runtime.whl").unlink()
    _is(rig.load_fault(fake_bundle, "wasm", web=web), ArtifactError, "wheel")
    shutil.rmtree(web / "vendor" / "tokenizers")
    _is(rig.load_fault(fake_bundle, "wasm", web=web), ArtifactError, "tokenizers")
    (web / "worker" / "pump.js").unlink()
    _is(rig.load_fault(fake_bundle, "wasm", web=web), DeviceFault, "worker")


def test_a_browser_without_simd(rig: BrowserRig, fake_bundle: Path, patched_web) -> None:
    """The feature test is given a body that no browser accepts."""
    web = patched_web({"executor/wasm_binary.js": [("0xfd, 0x62, 0x1a", "0xfe, 0xff, 0x1a")]})
    _is(rig.load_fault(fake_bundle, "wasm", web=web), DeviceFault, "simd128")


@pytest.fixture
def plain_rig() -> Iterator[BrowserRig]:
    """A browser without WebGPU, in which one host name is not a secure context."""
    rules = "--host-resolver-rules=MAP plain.test 127.0.0.1"
    rig = BrowserRig(BrowserOptions("wasm", timeout_s=60, extra_flags=(rules,)))
    yield rig
    rig.close()


def test_without_webgpu_and_without_a_secure_context(plain_rig: BrowserRig, fake_bundle: Path) -> None:
    rig = plain_rig
    url = rig.site(fake_bundle).url
    session = rig.page(url, "auto")
    loaded = rig.do(session.load("/bundle/"))
    assert loaded["device"]["backend"] == "wasm" and loaded["reason"]
    assert rig.do(session.generate(REQUEST))["token_ids"] == fake_greedy(PROMPT_IDS, 20)
    with pytest.raises(DeviceFault, match="WebGPU"):
        rig.do(rig.page(url, "webgpu").load("/bundle/"))
    insecure = rig.page(url.replace("127.0.0.1", "plain.test"), "auto")
    assert rig.do(insecure.page.evaluate("isSecureContext || 'gpu' in navigator")) is False
    loaded = rig.do(insecure.load("/bundle/"))
    assert "https" in loaded["reason"]
    assert rig.do(insecure.generate(REQUEST))["token_ids"] == fake_greedy(PROMPT_IDS, 20)


def test_the_browser_is_gone_afterwards() -> None:
    from specdec_tools.browser import _process_group

    rig = BrowserRig(BrowserOptions("wasm"))
    group = rig.do(_process_group(rig.browser))
    assert group is not None and group != os.getpgid(0)
    assert _alive(group)
    rig.close()
    assert not _alive(group)


def _alive(group: int) -> list[str]:
    """Processes of the group that have not ended (a zombie has)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        state, _, process_group = text[text.rindex(")") + 2 :].split()[:3]
        if int(process_group) == group and state != "Z":
            found.append(text)
    return found
