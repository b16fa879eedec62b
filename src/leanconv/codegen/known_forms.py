"""What kernels are whose forms are known: no emission is needed to say so.

This process knows the forms that it has emitted; the disk has entries of what others have
(`form_entries`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from leanconv.codegen import form_entries
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.forms import (
    Instance,
    adopt,
    forms_of_skeleton,
    known_instance,
)
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.keys import key_of
from leanconv.codegen.skeletons import split
from leanconv.target import Target


def known_instances(
    kernels: Sequence[Kernel], target: Target, objects: DiskCache
) -> tuple[dict[Kernel, Instance], bool]:
    """The instances that are known without emission, and whether the next process knows them all.

    That is those of forms that this process has emitted; where a kernel has none, all those of the
    entry on disk, if some process has loaded the same kernels together, else those of the forms on
    disk of its skeleton.
    """
    found = _known_here(kernels, target)
    if len(found) == len(kernels):
        return found, True
    text = form_entries.description(kernels)
    if text is None:
        return found, False
    entries, key = form_entries.entries_beside(objects), key_of(text, target)
    body = entries.get(key)
    instances = form_entries.unpacked(body, len(kernels)) if body is not None else None
    if instances:
        return dict(zip(kernels, instances, strict=True)), True
    if body is not None:
        entries.refuse(key)
    missing = [kernel for kernel in kernels if kernel not in found]
    _adopt_kept(_skeleton_keys(missing, target), target, objects)
    return found | _known_here(missing, target), False


def _adopt_kept(keys: Mapping[Kernel, str], target: Target, objects: DiskCache) -> None:
    """Take over the forms on disk of kernels' skeletons."""
    skeletons = form_entries.skeletons_beside(objects)
    bodies = skeletons.get_all(keys.values())
    for kernel, key in keys.items():
        if key in bodies:
            forms = form_entries.unpacked_forms(bodies[key], len(split(kernel)[1]))
            if forms is None:
                skeletons.refuse(key)
            else:
                adopt(kernel, target, forms)


def _known_here(kernels: Sequence[Kernel], target: Target) -> dict[Kernel, Instance]:
    """The instances of forms that this process knows."""
    found = {kernel: known_instance(kernel, target) for kernel in kernels}
    return {kernel: instance for kernel, instance in found.items() if instance}


def _skeleton_keys(kernels: Iterable[Kernel], target: Target) -> dict[Kernel, str]:
    """The keys of the entries of kernels' skeletons, each skeleton once."""
    texts = {form_entries.skeleton_description(kernel): kernel for kernel in kernels}
    return {kernel: key_of(text, target) for text, kernel in texts.items() if text is not None}


def remember(
    instances: Mapping[Kernel, Instance],
    emitted_now: Sequence[Kernel],
    target: Target,
    objects: DiskCache,
) -> None:
    """Keep what kernels are that were loaded together, and the forms of emitted skeletons."""
    text = form_entries.description(list(instances))
    body = form_entries.packed(list(instances.values())) if text is not None else None
    if text is not None and body is not None:
        form_entries.entries_beside(objects).put(key_of(text, target), body)
    skeletons = form_entries.skeletons_beside(objects)
    for kernel, key in _skeleton_keys(emitted_now, target).items():
        skeletons.put(key, form_entries.packed_forms(forms_of_skeleton(kernel, target)))
