"""Does a chat template take contents as lists of parts? Read from its syntax tree. Pure."""

from __future__ import annotations

from jinja2 import nodes


def iterates_content(tree: nodes.Template) -> bool:
    """True when the template loops over the content of a message (vLLM's format "openai")."""
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
    return any(
        _reads(loop.iter, name, "content") for loop in tree.find_all(nodes.For) for name in messages
    )


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
