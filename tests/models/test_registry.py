"""The registry: a model is found by its name, offered by role, built from a config."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from transformer_jax import config as configs
from transformer_jax import sharding, tasks
from transformer_jax.base import schema
from transformer_jax.base.errors import UserError
from transformer_jax.family.recurrent.model import Recurrent
from transformer_jax.models import LanguageModel, Seq2Seq, registry
from transformer_jax.tasks import classification


def test_a_model_is_found_by_its_name_and_a_typo_by_the_nearest():
    names = {"transformer", "recurrent", "coordinate_mlp", "speech"}
    assert {*registry.names()} == names
    assert registry.find("recurrent").modules["seq2seq"] is Recurrent
    with pytest.raises(UserError, match="'transfomer'. Did you mean 'transformer'?"):
        registry.find("transfomer")


def test_an_interface_lists_its_models_and_every_task_has_one():
    assert registry.names_for("seq2seq") == ("transformer", "recurrent")
    assert registry.names_for("language_model") == ("transformer",)
    assert registry.names_for("of nobody") == ()
    assert registry.names_for("of nobody", {"speech": Seq2Seq}) == ("speech",)
    for kind in map(tasks.find, tasks.names()):
        assert kind.model in registry.names_for(kind.interface, kind.modules)


@pytest.mark.parametrize("name", registry.names())
def test_every_field_of_a_model_is_a_key_or_derived(name):
    model = registry.find(name)
    own, all_fields = schema.fields(model.config), dataclasses.fields(model.config)
    derived = {field.name for field in all_fields} - {field.name for field in own}
    assert all(field.metadata["meaning"].endswith(".") for field in own)
    of_words = {"vocab_size", "vocab_rows", "source_vocab_size", "source_vocab_rows"}
    assert derived == (set() if name == "coordinate_mlp" else of_words)
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


def test_a_model_without_the_role_is_refused_with_those_that_have_it():
    config = configs.base("translation", "recurrent")
    with pytest.raises(UserError, match="'recurrent' has no module .* transformer"):
        registry.build(config, "language_model", vocab_size=13)


def test_a_model_brings_its_rules_when_it_is_found(monkeypatch):
    own = registry.find("recurrent").rules
    monkeypatch.setattr(sharding, "RULES", sharding.RULES[:1])
    registry.find.cache_clear()
    registry.find("recurrent")
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
