"""The animated canvas: well-formed, each generated token once, at its forward."""

from xml.etree import ElementTree

from llada_jax.sampler.replay import replay
from llada_jax.view.animation import FADE, HOLD, animated_svg
from llada_jax.view.page import phone_timeline
from tests.sampler.drawn_trace import drawn_trace
from tests.view.test_page import modelled

SVG = "{http://www.w3.org/2000/svg}"


def test_each_token_appears_with_its_forward():
    run = replay(drawn_trace(forwards=8, block_length=8)) | {"title": "a < b"}
    picture = animated_svg([run, run | {"phones": [phone_timeline(modelled(8))]}])
    root = ElementTree.fromstring(picture)
    heads = [each.text for each in root.iter(f"{SVG}text") if each.get("class") == "head"]
    assert heads == ["a < b: 8 forwards", "a < b: 8 forwards, 2.25 s on SM0, toy (modelled)"]
    groups = [each.get("class") for each in root.iter(f"{SVG}g")]
    assert groups == [f"k{step}" for step in range(1, 9)] * 2
    tokens = [each.text for each in root.iter(f"{SVG}text") if each.get("class") is None]
    assert tokens == ["</script><b>"] * 16
    assert all(f"@keyframes k{step} " in picture for step in range(1, 9))


def test_the_first_frame_is_the_finished_canvas():
    picture = animated_svg([replay(drawn_trace(forwards=8, block_length=8))])
    whole, start = 8 * 0.15 + HOLD, 8 * 0.15 + FADE
    assert f"{{ animation: k8 {whole}s -{start:.1f}s infinite }}" in picture
    assert start < whole and picture.count("s infinite") == 2 * 9  # tokens and their highlights
