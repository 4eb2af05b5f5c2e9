"""Does a chat template take contents as lists of parts? Read from its syntax tree. Pure."""

from __future__ import annotations

from jinja2 import nodes


def iterates_content(tree: nodes.Template) -> bool:
    """True when the template loops over the content of a message (vLLM's format "openai"), or has
    a macro that does."""
    conversations = {"messages"}
    while True:
        found = {
            assignment.target.name
            for assignment in tree.find_all(nodes.Assign)
            if isinstance(assignment.target, nodes.Name)
            and any(_reads(assignment.node, name) for name in conversations)
        }
        if found <= conversations:
            break
        conversations |= found
    messages = {
        loop.target.name
        for loop in tree.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name)
        and any(_reads(loop.iter, name) for name in conversations)
    }
    return any(_is_content(loop.iter, messages) for loop in tree.find_all(nodes.For)) or any(
        isinstance(loop.iter, nodes.Name)
        and loop.iter.name in _given_content(tree, macro, messages)
        for macro in tree.find_all(nodes.Macro)
        for loop in macro.find_all(nodes.For)
    )


def _given_content(tree: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    """The parameters of `macro` that stand for the content of a message somewhere."""
    names = [argument.name for argument in macro.args]
    given: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            pairs = [*zip(names, call.args, strict=False)]
            pairs += [(keyword.key, keyword.value) for keyword in call.kwargs]
            given |= {name for name, value in pairs if _is_content(value, messages)}
    return given & set(names)


def _is_content(node: nodes.Node, messages: set[str]) -> bool:
    return any(_reads(node, name, "content") for name in messages)


def _reads(node: nodes.Node | None, name: str, field: str | None = None) -> bool:
    """Whether `node` is the variable (or its `field`), perhaps filtered, tested or sliced."""
    while True:
        if isinstance(node, nodes.Filter | nodes.Test) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
        else:
            break
    if field is not None:
        if isinstance(node, nodes.Getattr):
            matches = node.attr == field
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
            matches = node.arg.value == field
        else:
            matches = False
        if not matches:
            return False
        assert isinstance(node, nodes.Getattr | nodes.Getitem)
        node = node.node
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
