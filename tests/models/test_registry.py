"""The registry: models are found by name, offered by interface, built from configs."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from transformer_jax import config as configs
from transformer_jax import sharding, tasks
from transformer_jax.base import schema
from transformer_jax.base.errors import UserError
from transformer_jax.models import LanguageModel, Seq2Seq, registry
from transformer_jax.tasks import classification

SECOND = """
import dataclasses
from jax.sharding import PartitionSpec
from transformer_jax.models.transformer import MODEL, Seq2Seq

MODEL = dataclasses.replace(
    MODEL, modules={"seq2seq": Seq2Seq}, rules=(("mixer/scale$", PartitionSpec()),)
)
"""


@pytest.fixture
def second(tmp_path, monkeypatch):
    """The name of a second model, of another package, which can only translate."""
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "model.py").write_text(SECOND)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_others", [])
    monkeypatch.setattr(sharding, "RULES", sharding.RULES)
    yield "second.model"
    registry.find.cache_clear()


def test_a_model_is_found_by_its_name_and_a_typo_by_the_nearest(second):
    assert registry.names()[0] == "transformer" and second not in registry.names()
    assert registry.find(second).modules == {"seq2seq": Seq2Seq}
    assert registry.names()[-1] == second
    with pytest.raises(UserError, match="'transfomer'. Did you mean 'transformer'?"):
        registry.find("transfomer")


def test_an_interface_lists_its_models_and_every_task_has_one(second):
    registry.find(second)
    translators = registry.names_for("seq2seq")
    assert (translators[0], translators[-1]) == ("transformer", second)
    assert second not in registry.names_for("language_model")
    assert registry.names_for("of nobody") == ()
    assert registry.names_for("of nobody", {second: Seq2Seq}) == (second,)
    for kind in map(tasks.find, tasks.names()):
        assert kind.model in registry.names_for(kind.interface, kind.modules)


@pytest.mark.parametrize("name", registry.names())
def test_every_field_of_a_model_is_a_key_or_derived(name):
    model = registry.find(name)
    own, all_fields = schema.fields(model.config), dataclasses.fields(model.config)
    derived = {field.name for field in all_fields} - {field.name for field in own}
    assert all(field.metadata["meaning"].endswith(".") for field in own)
    of_words = {"vocab_size", "vocab_rows", "source_vocab_size", "source_vocab_rows"}
    fixed = {"embedding_scale", "output_bias", "absent"}  # some are the Transformer's
    assert derived - fixed == of_words or not derived  # a model of no text has no words
    assert derived or name != "transformer"
    section = schema.defaults(model.config)
    assert list(section) == [field.name for field in own]
    assert schema.find_problems("model", section, model.config) == []


def test_a_module_is_built_with_padded_tables_and_without_absent_layers():
    config = configs.base("translation")
    config.tokenizer.row_multiple = 8
    module = registry.build(config, "seq2seq", vocab_size=13, source_vocab_size=17)
    assert isinstance(module, Seq2Seq)
    sizes = module.config
    assert (sizes.vocab_size, sizes.vocab_rows) == (13, 16)
    assert (sizes.source_vocab_size, sizes.source_vocab_rows) == (17, 24)
    alone = registry.build(configs.base("language"), "language_model", vocab_size=13)
    assert isinstance(alone, LanguageModel) and alone.config.encoder_layers == 0


def test_a_module_of_a_task_gets_its_arguments_besides_the_sizes():
    config = configs.base("classification")
    about = dict(source_vocab_size=13, outputs=3, pooling="mean")
    module = registry.build(config, "text_classifier", classification.MODULES, **about)
    assert (module.outputs, module.pooling) == (3, "mean")
    assert module.config.decoder_layers == 0


def test_a_model_without_the_interface_is_refused_with_those_that_have_it(second):
    config = configs.base("translation", second)
    with pytest.raises(UserError, match=f"'{second}' has no module .* transformer"):
        registry.build(config, "language_model", vocab_size=13)


def test_a_model_brings_its_rules_when_it_is_found(second, monkeypatch):
    monkeypatch.setattr(sharding, "RULES", sharding.RULES[:1])
    own = registry.find(second).rules
    assert own and sharding.RULES[1:] == own


def test_a_rule_is_added_once(monkeypatch):
    monkeypatch.setattr(sharding, "RULES", sharding.RULES[:1])
    leaf = jax.ShapeDtypeStruct((3, 5), jnp.float32)
    rule = (r"mixer/table$", PartitionSpec(None, "fsdp"))
    with pytest.raises(ValueError, match="mixer/table"):
        sharding.spec_of("layer_0/mixer/table", leaf)
    for _ in range(2):
        sharding.add_rules((rule,))
    assert sharding.RULES[1:] == (rule,)
    assert sharding.spec_of("layer_0/mixer/table", leaf) == rule[1]
