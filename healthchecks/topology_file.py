"""Reads where devices sit on the bus from a topology file of NCCL. Pure.

Apart from `affinity` because few need it, and because XML takes a while to import.
"""

from __future__ import annotations

from xml.etree import ElementTree


def read_chains(text: str) -> dict[str, tuple[str, ...]]:
    """Places by PCI address from a topology file of NCCL (NCCL_TOPO_FILE).

    Such a file nests `<pci busid="0001:00:00.0">` elements in a `<cpu numaid="0">`; clouds that hide the PCI
    tree put the switches that really are there into it.

    Raises:
        ValueError: it is not XML.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"not a topology file of NCCL: {error}") from None
    found: dict[str, tuple[str, ...]] = {}
    waiting: list[tuple[ElementTree.Element, tuple[str, ...]]] = [(root, ())]
    while waiting:
        element, chain = waiting.pop()
        if element.tag == "cpu":
            chain = (f"cpu{element.get('numaid', '')}",)
        elif element.tag == "pci":
            address = element.get("busid", "").lower()
            chain = (*chain, address)
            found[address] = chain
        waiting.extend((child, chain) for child in element)
    return found
