"""Chat templates in the manner of those that models come with, odd ones, and conversations to render; for the twins' cross-check."""

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Tool calls, results of tools, whitespace control, a variable set anew.
TOOLS = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- '<|h|>system\n\n' + system_message + '<|eot|>' }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|h|>' + message['role'] + '\n\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot|>' }}
    {%- else %}
        {{- '<|h|>tool\n\n' }}
        {%- if message.content is mapping %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|h|>assistant\n\n' }}
{%- endif %}
"""
ALTERNATING = (
    "{%- if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set turns = messages %}{% set system = false %}{% endif %}{% for message in turns %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% set role = 'model' if message.role == 'assistant' else message.role %}"
    "{{ '<start>' + role + '\n' + message['content'] + '<end>\n' }}{% endfor %}"
)

# Both sides give the same text for every conversation, or both refuse it.
SAME = {
    "chatml": CHATML,
    "tools": TOOLS,
    "alternating": ALTERNATING,
    "no system": NO_SYSTEM,
    "namespace": "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% if loop.index0 == ns.last %}**{% endif %}"
    "{{ loop.index }}/{{ loop.length }} {{ m.role | upper }}: {{ m.content }}{{ '' if loop.last else ' | ' }}{% endfor %}",
    "macro": "{% macro turn(m, n=1) %}[{{ m.role[0] }}{{ n }}]{{ m.content }}{% endmacro %}"
    "{% for m in messages %}{{ turn(m, loop.index) }}{% endfor %}",
    "slices": "{% for m in messages[::-1] %}{{ m.role }};{% endfor %}{{ messages|length }}{{ messages[-1].content[:3] }}",
    "skipped": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "undefined": "{% for m in messages %}{{ m.nothing }}{% if m.reasoning is defined %}!{% endif %}"
    "{{ m.content }}{% endfor %}{{ tools }}",
    "blocks": "{% for m in messages %}\n    {% if m.role == 'user' %}\n  U: {{ m.content }}\n    {% else %}\n  O: {{ m.content }}\n"
    "    {% endif %}\n{% endfor %}\nend\n",
    "tojson": "{% for m in messages %}{{ m | tojson }}{% endfor %}{{ [1, {'a': none}] | tojson(indent=2) }}",
    "printed": "{{ none }}{{ true }}{{ messages[0] }}{{ ['a', 1, false, none] }}"
    "{% for m in messages %}{{ m.content is string }}{% endfor %}",
    "selected": "{% set u = messages | selectattr('role', 'equalto', 'user') | list %}{{ u | length }}{{ u[0].content }}"
    "{{ messages|map(attribute='role')|join(',') }}",
    "fields": "{% for m in messages %}{{ m.get('name', '-') }}{% for k, v in m.items() %}{{ k }}{% endfor %}{% endfor %}",
    "set block": "{# said of nobody #}{% set x %}of {{ messages|length }}{% endset %}{{ x }}",
    "date": "{{ strftime_now('%Y') | length }}",
    "no method": "{{ messages[0].content.nosuch() }}",
    "no function": "{{ nosuch('x') }}",
}  # fmt: skip
# One side refuses, with a type, what the other renders: strings and numbers added, a division by zero, fields of what is not there,
# filters of null.
REFUSED_BY_ONE = {
    "sum": "{{ messages[0].content + 1 }}",
    "division": "{{ 1 / 0 }}",
    "field of nothing": "{{ nosuch.x }}",
    "joined null": "{{ 'a' ~ none }}",
    "no filter": "{{ messages | nosuch }}",
    "raw": "{% raw %}{{ x }}{% endraw %}",
    "unclosed": "{% for m in messages %}",
}
# The page's library loses what an iteration wrote before a break, and takes remainders as JavaScript does.
DIFFERENT = {
    "written before a break": "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}",
    "negative remainder": "{{ -7 % 3 }}",
}

USER = {"role": "user", "content": "Hello there"}
CALL = {"name": "get", "arguments": {"city": "K\u00f6ln", "n": 1.5, "deep": [1, {"x": None}]}}
CONVERSATIONS = {
    "one": [USER],
    "system": [
        {"role": "system", "content": "  Be brief.\n"},
        {"role": "user", "content": 'Hi <b>&"\u00e9\U0001f600\\'},
    ],
    "several": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": " a b  c "},
        {"role": "assistant", "content": "Yes.\n"},
        {"role": "user", "content": "And?"},
    ],
    "user twice": [USER, {"role": "user", "content": "b"}],
    "tool call": [
        {"role": "user", "content": "weather"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "id": "c1", "function": CALL}],
        },
        {"role": "tool", "content": '{"t": 3}', "tool_call_id": "c1"},
        {"role": "user", "content": "thanks"},
    ],
    "nothing said": [{"role": "user", "content": ""}],
    "ends with an answer": [USER, {"role": "assistant", "content": "Well,"}],
}
BAD = {
    "messages": [[], "hello", {"role": "user", "content": "x"}, 7],
    "messages[1]": [[USER, "x"], [USER, None], [USER, [USER]]],
    "messages[0].role": [[{"content": "x"}], [{"role": 7, "content": "x"}]],
}
