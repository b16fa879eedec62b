"""Modules of `leanconv.torch`, and models whose convolutions they replace."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: leanconv[torch]")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import leanconv.torch as ours  # noqa: E402
from leanconv.errors import InputError  # noqa: E402

pytestmark = pytest.mark.once


class Block(nn.Module):
    """Two convolutions and a way around them, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        around = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.around = nn.Identity() if stride == 1 else around

    def forward(self, x: Any) -> Any:
        return F.relu(self.second(F.relu(self.norm(self.first(x)))) + self.around(x))


def network() -> nn.Module:
    """A small network like ResNet-18."""
    torch.manual_seed(0)
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1)]
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), *blocks, *ends)


def convolutions(module: nn.Module) -> list[nn.Module]:
    return [each for each in module.modules() if isinstance(each, nn.Conv2d)]


def test_replace_keeps_everything_but_the_class() -> None:
    model = network()
    state, parameters = copy.deepcopy(model.state_dict()), list(model.parameters())
    calls = []
    model[0].register_forward_hook(lambda *given: calls.append(given))
    assert ours.replace(model) is model
    assert all(type(each) is ours.Conv2d for each in convolutions(model))
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert state.keys() == model.state_dict().keys()
    network().load_state_dict(model.state_dict())
    model(torch.randn(1, 3, 8, 8))
    assert len(calls) == 1
    assert type(ours.replace(nn.Conv3d(1, 1, 1))) is ours.Conv3d


def test_what_is_no_module_of_torch_itself_stays(caplog: pytest.LogCaptureFixture) -> None:
    class Own(nn.Conv2d):
        pass

    shared = nn.Conv2d(2, 2, 1)
    weighed = nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 1))
    model = nn.ModuleDict({"own": Own(2, 2, 1), "lazy": nn.LazyConv2d(2, 1), "weighed": weighed})
    model["a"] = model["b"] = shared
    with caplog.at_level(logging.INFO, "leanconv.torch"):
        ours.replace(model)
    assert type(model["own"]) is Own
    assert type(model["lazy"]) is nn.LazyConv2d
    assert model["a"] is model["b"]
    assert type(model["a"]) is ours.Conv2d
    assert [r.getMessage().split()[0] for r in caplog.records] == ["own", "lazy", "weighed"]


def losses(model: nn.Module, steps: int = 8) -> list[float]:
    """The losses of a few steps of training."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(4, 3, 16, 16, generator=generator)
    labels = torch.randint(0, 10, (4,), generator=generator)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_losses_are_those_of_torch(layout: Any) -> None:
    expected = losses(network().to(memory_format=layout))
    found = losses(ours.replace(network().to(memory_format=layout)))
    assert found[-1] < 0.7 * found[0]
    assert found == pytest.approx(expected, rel=1e-4)


MODULES: list[tuple[type[nn.Module], tuple[Any, ...], dict[str, Any]]] = [
    (nn.Conv1d, (4, 6, 3), {"padding": "same", "dilation": 3}),
    (nn.Conv2d, (4, 6, (3, 2)), {"padding": "same"}),
    (nn.Conv2d, (4, 6, 3), {"padding": "valid", "stride": (2, 1)}),
    (nn.Conv2d, (4, 4, 3), {"padding": 2, "padding_mode": "reflect", "groups": 4}),
    (nn.Conv2d, (4, 4, 3), {"padding": "same", "padding_mode": "circular"}),
    (nn.Conv3d, (4, 6, 3), {"padding": 1, "padding_mode": "replicate", "bias": False}),
    (nn.ConvTranspose1d, (4, 6, 3), {"stride": 2, "output_padding": 1}),
    (nn.ConvTranspose2d, (4, 6, 3), {"stride": (2, 1), "padding": 1, "groups": 2}),
    (nn.ConvTranspose3d, (4, 6, 2), {"stride": 2, "dilation": 2, "output_padding": 1}),
]


@pytest.mark.parametrize(("kind", "given", "options"), MODULES)
def test_each_option_of_the_modules(kind: Any, given: Any, options: Any) -> None:
    torch.manual_seed(0)
    module = kind(*given, **options)
    replaced = ours.replace(copy.deepcopy(module))
    assert type(replaced) is getattr(ours, kind.__name__)
    x = torch.randn(2, 4, *(7, 6, 5)[-len(module.kernel_size) :])
    for each in (x, x[0]):
        assert torch.allclose(replaced(each), module(each), atol=1e-5)
    if module.transposed and module.output_padding[0]:
        size = [extent - 1 for extent in module(x).shape[2:]]
        assert torch.allclose(replaced(x, size), module(x, size), atol=1e-5)
    kind(*given, **options).load_state_dict(replaced.state_dict(), strict=True)


def test_copies_and_pickles() -> None:
    model = ours.replace(network()).eval()
    x = torch.randn(2, 3, 8, 8)
    expected = model(x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for each in (*copies, torch.load(file, weights_only=False)):
        assert type(each[0]) is ours.Conv2d
        assert torch.equal(each(x), expected)


def test_changed_weights_are_seen() -> None:
    module = ours.replace(nn.Conv2d(3, 8, 3))
    x = torch.randn(1, 3, 8, 8)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            before = module(x)
            module.weight.data.mul_(2)
            module.bias.data.add_(1)
            expected = F.conv2d(x, module.weight, module.bias)
            assert torch.allclose(module(x), expected, atol=1e-5)
            assert not torch.allclose(before, expected, atol=1e-2)


@pytest.mark.parametrize("removed", [False, True])
def test_pruned_modules(removed: bool) -> None:
    """With masks or without: in inference and training, and when they are pruned further."""
    from torch.nn.utils import prune

    def pruned() -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Conv2d(16, 64, 1), nn.Tanh(), nn.Conv2d(64, 16, 3, padding=1))
        for each in convolutions(made):
            prune.l1_unstructured(each, "weight", 0.9)
            if removed:
                prune.remove(each, "weight")
        return made.eval()

    model, replaced, x = pruned(), ours.replace(pruned()), torch.randn(2, 16, 14, 14)
    for part in (0.0, 0.5):
        for each in (*convolutions(model), *convolutions(replaced)):
            prune.l1_unstructured(each, "weight", part)
        with torch.no_grad():
            expected = model(x)
            for _ in range(2):
                torch.testing.assert_close(replaced(x), expected)
        for given in (model, replaced):
            given.zero_grad()
            given(x).square().sum().backward()
        for one, other in zip(model.parameters(), replaced.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-3)


def test_export_and_compilation_see_one_operator() -> None:
    model, x = ours.replace(network()), torch.randn(2, 3, 16, 16)
    sizes = ({0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(model.eval(), (x,), dynamic_shapes=sizes)
    names = [str(node.target) for node in program.graph.nodes]
    assert names.count("leanconv.conv2d.default") == len(convolutions(model))
    assert "aten.conv2d.default" not in names
    other = torch.randn(3, 3, 24, 16)
    assert torch.allclose(program.module()(other), model(other), atol=1e-5)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x), model(x), atol=1e-5)
    compiled(x).sum().backward()
    gradient = model[0].weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    assert torch.allclose(gradient, model[0].weight.grad, atol=1e-4)


@pytest.mark.parametrize("given", [None, torch.nn.Conv2d, {"weight": torch.ones(1)}])
def test_what_is_no_module_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"expected a torch\.nn\.Module"):
        ours.replace(given)
