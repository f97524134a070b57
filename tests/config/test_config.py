"""The config: what is accepted, what is refused, and what the refusal says."""

import itertools
import math
import pathlib
import re
import sys

import jax
import pytest

from transformer_jax import cli, config, tasks
from transformer_jax.base import schema
from transformer_jax.base.errors import UserError
from transformer_jax.config import checks, loading
from transformer_jax.models import layers, registry
from transformer_jax.runs import resuming


def problems_of(spec="quickstart", **overrides):
    given = {k.replace("__", "."): v for k, v in overrides.items()}
    with pytest.raises(UserError) as caught:
        config.load(spec, given)
    return caught.value.problems


def test_every_shipped_config_loads_and_says_what_it_is():
    here = {
        f"data.{split}_{side}": __file__
        for split in ("train", "validation", "test")
        for side in ("source", "target", "files", "text")
    }
    for name, path in config.shipped().items():
        known = dict(config.items(loading._run_file(name)))
        loaded = config.load(name, {k: v for k, v in here.items() if k in known})
        assert loaded.is_locked
        assert f"configs/{name}.py" in path.read_text().split('"""')[1]


VARIANTS = {  # of the core
    "quickstart": [""],
    "wmt14": ["", ":en_de_base", ":en_de_big", ":en_fr_base", ":en_fr_big",
              ":en_de_base_tpu", ":en_de_big_tpu", ":en_fr_base_tpu"],
    "language_models": ["", ":350m", ":1_3b"],
    "multi30k": ["", ":en_de", ":en_de_lower", ":de_en", ":en_fr", ":both",
                 ":fine_tuned_de_en", ":muon_de_en"],
    "iwslt14": ["", ":de_en", ":en_de"],
    "ted": [""],
    "tatoeba": ["", ":de_en", ":en_de"],
    "sst2": [""],
    "opinions": ["", ":label", ":score", ":pretrained"],
    "masked": ["", ":phrasebook", ":wikitext2", ":opinions"],
    "language": ["", ":phrasebook", ":stories", ":shakespeare", ":wikitext2",
                 ":canaries"],
    "images": ["", ":digits", ":mnist", ":colour", ":cifar10", ":vit_ti", ":vit_s",
               ":vit_b"],
    "sets": ["", ":none", ":sinusoid"],
    "table3": ["", ":base", ":a_1", ":d_smoothing_2", ":big"],
}  # fmt: skip
VARIANTS |= {  # of the family
    name: ["", *(f":{variant}" for variant in config.variants(name) if variant)]
    for name in config.shipped()
    if name not in VARIANTS
}


def test_every_config_of_the_core_is_shipped():
    assert set(config.shipped()) == set(VARIANTS)


@pytest.mark.parametrize(
    "spec", [n + v for n, all_of in VARIANTS.items() for v in all_of]
)
def test_a_shipped_config_lacks_nothing_but_its_data(spec):
    try:
        assert config.load(spec).is_locked  # generated, or looked for when it is read
    except UserError as error:
        assert all("there is no file" in problem for problem in error.problems)
    text = config.shipped()[spec.partition(":")[0]].read_text()
    # A figure has a file that says how it was measured, and by what commit.
    named = re.findall(r"results/\w+(?:_\*)?\.json|docs/speedrun\.md", text)
    root = pathlib.Path(__file__).parents[2]
    assert all(list(root.glob(name)) for name in named)
    assert named or re.search(r"yet\s+measured", text)


@pytest.mark.parametrize("name", [n for n, v in VARIANTS.items() if len(v) > 1])
def test_a_variant_that_does_not_exist_is_refused_with_those_that_do(name):
    (problem,) = problems_of(f"{name}:huge")
    assert all(v.strip(":") in problem for v in VARIANTS[name])
    assert "has no variant 'huge'" in problem


@pytest.mark.parametrize("devices", [3, 16, 256])
def test_the_config_of_any_number_of_devices_is_accepted(devices):
    changed = {"mesh.data": str(devices), "eval.batch_rows": "12"}
    assert config.load("quickstart", changed).data.row_multiple == 8


def test_no_key_defaults_to_none_so_that_each_can_be_set_on_the_command_line():
    assert all(v is not None for _, v in config.items(config.base()))


TASKS_AND_MODELS = [
    (task, model)
    for task in tasks.names()
    for model in registry.names_for(
        tasks.find(task).interface, tasks.find(task).modules
    )
]
# Keys that may be any text, and why.
FREE = {
    r"data\.(folder|\w+_(files|source|target|text|label|images|labels))": "paths",
    r"data\.picture|decode\.pictures": "paths",
    r"data\.asked": "numbers, which the check of its task compares with its data",
    r"data\.(\w+_(column|split|tags|weights)|tfds_name)": "what the user's data say",
    r"data\.target_language": "codes, which sacreBLEU knows",
    r"filter\.\w+_script": "the first words of Unicode's names of letters",
    r"tokenizer\.(file|user_symbols)": "a path, and whatever shall be one piece",
    r"lora\.matrices": "a pattern, which adapters.find_problems checks",
    r"model\.word_vectors|train\.(initial|teacher)": "paths",
    r"card": "words for people",
    r"data\.store": "a folder, or an address",
    r"imports": "modules, which may be anybody's",
    r"targets": "hardware and a number of devices: hardware.py",
    r"eval\.splits": "splits that the data have",
    r"data\.canaries": "how often each is planted, which canaries.find_problems checks",
    r"model\.pixel_(mean|deviation)": "numbers, which find_pixel_problems checks",
    r"optim\.(lowered|rates)": "pairs, which optim.find_problems checks",
}


@pytest.mark.parametrize(("task", "model"), TASKS_AND_MODELS)
def test_every_key_says_what_it_means_and_what_it_may_be(task, model):
    declared = config.declared(task, model)
    assert list(declared) == [key for key, _ in config.items(config.base(task, model))]
    for name, field in declared.items():
        about, kind = field.metadata, type(field.default)
        assert about["meaning"].endswith("."), name
        if kind in (int, float):
            assert about["least"] is not None or about["above"] is not None, name
        elif kind is not bool:
            assert schema.choices(field) or any(re.fullmatch(k, name) for k in FREE), (
                name
            )
        assert schema.find_problem(name, field.default, field) is None


WRONG_TYPES = {
    bool: (None, 1),
    str: (None, 1),
    tuple: (None, "a"),
    int: (None, "1", 0.5, True),
    float: (None, "1"),  # of True, ConfigDict makes 1.0
}


def values_outside(field):
    """Yield values of a wrong type, and some that are beyond a bound."""
    kind, about = type(field.default), field.metadata
    yield from WRONG_TYPES[kind]
    if kind is float:
        yield from (math.nan, math.inf, -math.inf)
    if kind in (int, float):
        least = about["least"] if about["above"] is None else about["above"]
        most = about["most"] or about["below"] or schema.MOST
        beyond = [10**20, most + 1, least - 1, *[-1] * (least > -1)]
        beyond += [
            limit for limit in (about["above"], about["below"]) if limit is not None
        ]
        yield from map(kind, beyond)


@pytest.mark.parametrize(("task", "model"), TASKS_AND_MODELS)
def test_a_value_outside_is_refused_by_its_key_and_no_device_is_touched(
    task, model, monkeypatch
):
    for name in ("devices", "local_devices", "device_count", "default_backend"):
        monkeypatch.delattr(jax, name)
    declared = config.declared(task, model)
    del declared["task"], declared["model.name"]  # `base` refuses these
    names, values = declared.keys(), map(values_outside, declared.values())
    at_once = [
        {name: value for name, value in zip(names, row, strict=True) if value != ...}
        for row in itertools.zip_longest(*values, fillvalue=...)
    ]
    alone = [
        {name: text}
        for name, field in declared.items()
        for text in ("", "nonsense") * bool(schema.choices(field))
    ]
    for wrong in at_once + alone:
        changed = config.base(task, model)
        with changed.unlocked(), changed.ignore_type():
            changed.update_from_flattened_dict(wrong)
        found = checks.find_problems(changed)
        for name, value in wrong.items():
            assert any(p.startswith(f"{name} = {value!r}") for p in found), name


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of somebody else's, importable in this test alone."""
    place = tmp_path / "theirs"
    place.mkdir()
    (place / "task.py").write_text("from transformer_jax.tasks.translation import TASK")
    (place / "model.py").write_text(
        "from transformer_jax.models.transformer import MODEL"
    )
    (place / "more.py").write_text(
        "from transformer_jax.models.layers import ACTIVATIONS\n"
        "ACTIVATIONS['cube'] = lambda x: x**3\n"
    )
    (place / "stranger.py").write_text("raise SystemExit('imported')")
    (place / "broken.py").write_text("import transformer_jax\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(tasks, "_others", {})
    monkeypatch.setattr(registry, "_others", [])
    yield "theirs"
    layers.ACTIVATIONS.pop("cube", None)
    registry.find.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "theirs"]:
        del sys.modules[name]


def test_a_task_and_a_model_of_another_package_are_found_by_their_names(package):
    made = config.base("theirs.task", "theirs.model")
    assert made.task in tasks.names() and made.model.name in registry.names()
    assert not checks.find_problems(made)
    with pytest.raises(UserError, match="'theirs.tsk' cannot be imported.*theirs.tsk"):
        config.base("theirs.tsk")
    with pytest.raises(
        UserError, match=r"theirs.more has no TASK = TaskDefinition\(...\): see tasks/"
    ):
        config.base("theirs.more")
    with pytest.raises(
        UserError,
        match=r"theirs.more has no MODEL = Model\(...\): see models/registry.py",
    ):
        config.base("translation", "theirs.more")


def test_a_config_imports_what_adds_to_the_tables(package, tmp_path):
    given = {"model.activation": "cube"}
    (problem,) = problems_of("quickstart", **given)
    assert "choose relu" in problem
    given["imports"] = "theirs.more"
    loaded = config.load("quickstart", given)
    assert loaded.model.activation == "cube"
    for name, why in (("stranger", "does not mention"), ("broken", "ZeroDivision")):
        (problem,) = problems_of("quickstart", imports=f"theirs.{name}")
        assert why in problem and "Python finds it" in problem


def test_a_model_that_a_task_does_not_have_is_refused_with_those_it_has():
    with pytest.raises(UserError) as caught:
        config.base("translation", "transfomer")
    assert str(caught.value) == (
        "unknown model 'transfomer' of the task 'translation'. "
        f"Did you mean 'transformer'? Choose {', '.join(registry.names_for('seq2seq'))}"
    )
    of_language = registry.names_for("language_model")
    assert of_language[0] == "transformer"
    for model in set(registry.names()) - set(of_language):
        with pytest.raises(UserError, match=f"'{model}' of the task 'language'"):
            config.base("language", model)


def test_an_override_sets_the_key_with_its_type():
    loaded = config.load(
        "quickstart",
        {
            "optim.warmup_steps": "40",
            "optim.constant": "2",
            "log.tensorboard": "false",
            "eval.splits": "test,validation",
            "model.norm": "pre",
        },
    )
    assert loaded.optim.warmup_steps == 40
    assert loaded.optim.constant == 2.0 and isinstance(loaded.optim.constant, float)
    assert loaded.log.tensorboard is False
    assert loaded.eval.splits == ("test", "validation")
    assert loaded.model.norm == "pre"


def test_one_value_in_brackets_is_a_tuple_of_one():
    given = {"eval.splits": "('test')", "data.train_weights": "(3)"}
    loaded = config.load("quickstart", given)
    assert loaded.eval.splits == ("test",) and loaded.data.train_weights == (3,)


@pytest.mark.parametrize(
    ("spec", "key", "enough"),
    [
        ("quickstart", "decode.max_length", 70),
        ("opinions", "data.max_length", 64 + 2),
        ("masked", "data.window", 64 + 2),
        ("language", "data.window", 64),
    ],
)
def test_a_learned_table_holds_the_longest_example_and_answer(spec, key, enough):
    given = {"model.positions": "learned", "model.max_positions": str(enough)}
    given |= {"decode.max_length": "20"} if spec == "language" else {}
    given[key] = "70" if spec == "quickstart" else "64"
    config.load(spec, given)
    given["model.max_positions"] = str(enough - 1)
    (problem,) = problems_of(spec, **given)
    assert f"model.max_positions {enough - 1} < {enough}" in problem


def test_an_encoder_alone_halves_its_buckets_for_both_directions():
    relative = {"model.positions": "relative", "model.relative_distance": "9"}
    config.load("opinions", relative)
    (problem,) = problems_of("opinions", **relative | {"model.relative_distance": "8"})
    assert "the 8 distances" in problem
    problems_of("language", **relative)


def test_a_typo_names_the_nearest_key():
    (problem,) = problems_of(model__num_head="4")
    assert "'model.num_heads'" in problem


def test_a_key_in_the_wrong_section_is_found_in_the_right_one():
    (problem,) = problems_of(train__warmup_steps="4")
    assert "warmup_steps" in problem.split("Did you mean")[1]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("model.num_heads", "true"),
        ("model.num_heads", "4.0"),
        ("optim.constant", "high"),
        ("log.tensorboard", "1"),
    ],
)
def test_a_wrong_type_is_refused_with_the_default(key, text):
    (problem,) = problems_of(**{key.replace(".", "__"): text})
    assert key in problem and text in problem and "default" in problem


def test_a_bool_in_a_config_file_does_not_pass_for_an_int(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from transformer_jax.config import base\n"
        "def get_config():\n"
        "    config = base()\n"
        "    config.train.accumulation = True\n"
        "    return config\n"
    )
    (problem,) = problems_of(str(file))
    assert "train.accumulation" in problem and "bool" in problem


def write_config(folder, line):
    """Write a config file whose line 4 is this one."""
    file = folder / "mine.py"
    file.write_text(
        "from transformer_jax.config import base\n"
        "def get_config():\n"
        "    config = base()\n"
        f"    {line}\n"
        "    return config\n"
    )
    return file


def test_an_unknown_key_in_a_config_file_is_reported_with_its_line(
    tmp_path, monkeypatch
):
    file = write_config(tmp_path, "config.model.num_head = 4")
    said = "there is no option 'model.num_head'. Did you mean 'model.num_heads'?"
    assert problems_of(str(file)) == (f"{file}, line 4: {said}",)
    monkeypatch.chdir(tmp_path)
    assert problems_of("mine.py") == (f"mine.py, line 4: {said}",)
    file.write_text(file.read_text().replace("num_head", "xyz"))
    (problem,) = problems_of("mine.py")
    assert "line 4: there is no option 'model.xyz'. Known: model." in problem
    assert "model.num_heads" in problem


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("config.foo.bar = 1", "'foo'. Known: card, checkpoint, data, "),
        ("config.optm.warmup_steps = 1", "'optm'. Did you mean 'optim'?"),
        ("config.optm = 1", "'optm'. Did you mean 'optim'?"),
        ("config['foo']['bar'] = 1", "'foo'. Known: card, checkpoint, data, "),
        (
            "config.train.steps = config.train.stps",
            "'train.stps'. Did you mean 'train.steps'?",
        ),
        ("config.model.update(d_modl=3)", "'model.d_modl'. Did you mean 'model.d_mo"),
        ("del config.model.d_modl", "'model.d_modl'. Did you mean 'model.d_model'?"),
    ],
)
def test_an_unknown_section_or_key_is_reported_however_it_is_used(tmp_path, line, said):
    file = write_config(tmp_path, line)
    (problem,) = problems_of(str(file))
    assert problem.startswith(f"{file}, line 4: there is no option {said}")


def test_a_value_of_another_type_in_a_config_file_is_reported_in_plain_words(tmp_path):
    file = write_config(tmp_path, "config.model.num_heads = 'x'")
    said = "line 4: 'num_heads' is of type int, but the given value of type str"
    assert problems_of(str(file)) == (f"{file}, {said}",)


def test_other_errors_of_a_config_file_are_not_taken_for_unknown_keys(tmp_path):
    file = tmp_path / "mine.py"
    for line, said in (("{}['model']", "KeyError: model"), ("'x'.a", "AttributeError")):
        file.write_text(f"def get_config():\n    return {line}\n")
        (problem,) = problems_of(str(file))
        assert problem.startswith(f"{file}, line 2: {said}")


def test_variants_reach_the_config_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from transformer_jax.config import base\n"
        "def get_config(size='small'):\n"
        "    config = base()\n"
        "    config.model.d_ff = {'small': 64, 'large': 256}[size]\n"
        "    return config\n"
    )
    assert config.load(str(file)).model.d_ff == 64
    assert config.load(f"{file}:large").model.d_ff == 256


def test_a_missing_config_file_names_the_nearest_shipped_one():
    (problem,) = problems_of("quikstart")
    assert "'quickstart'" in problem


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"model.num_heads": "3"}, ("128", "3", "d_k")),
        ({"optim.warmup_steps": "99999"}, ("99999", "train.steps")),
        (
            {"train.accumulation": "16"},
            ("row_multiple 8", "16 parts", "multiple of 16"),
        ),
        ({"data.source": "txt"}, ("phrasebook | text",)),
        ({"data.source": "text"}, ("data.train_source", "empty")),
        ({"tokenizer.shared": "false"}, ("model.tie", "decoder")),
        ({"data.batch_tokens": "100"}, ("100", "row_multiple")),
        (
            {"eval.every": "250"},
            ("250", "set eval.every = 200 or checkpoint.every = 50"),
        ),
        ({"checkpoint.average": "99"}, ("99", "keep_last")),
        # max_length 64; the longest answer to it may have extra_length 50 more
        (
            {"model.positions": "learned", "model.max_positions": "113"},
            ("113", "114", "65 pieces", "decode.extra_length"),
        ),
        ({"model.positions": "relative", "model.relative_buckets": "3"}, ("3", "4")),
        (
            {"model.positions": "relative", "model.relative_distance": "16"},
            ("model.relative_distance 16", "model.relative_buckets 32"),
        ),
        (
            {"optim.schedule": "linear", "optim.decay_steps": "3"},
            ("optim.decay_steps 3", "optim.warmup_steps", "raise"),
        ),
        (
            {"optim.schedule": "cosine", "optim.warmup_steps": "1400"},
            ("train.steps 1400", "optim.warmup_steps 1400"),
        ),
        ({"optim.decay_steps": "-1"}, ("optim.decay_steps = -1", "at least 0")),
        ({"optim.clip_norm": "-1"}, ("optim.clip_norm = -1", "at least 0")),
        ({"checkpoint.minutes": "-1"}, ("checkpoint.minutes = -1", "at least 0")),
        ({"checkpoint.every": "0"}, ("checkpoint.every = 0",)),
        ({"train.accumulation": "0"}, ("train.accumulation = 0",)),
        ({"task": "language"}, ("language", "transformer", "base(task=…")),
        ({"model.dropout_residual": "1.0"}, ("1.0", "less than 1")),
        (
            {"model.dropout_words": "0.1", "data.train_tags": "<2en>"},
            ("model.dropout_words = 0.1", "data.train_tags", "dropout_words to 0.0"),
        ),
        ({"mesh.sequence": "2"}, ("length_multiple", "2")),
        ({"mesh.tensor": "8"}, ("num_heads", "8")),
        ({"mesh.data": "0"}, ("at least 1",)),
        ({"train.steps": "0"}, ("train.steps", "at least 1")),
        ({"model.norm": "pst"}, ("post",)),
        ({"data.train_weights": "1,inf"}, ("data.train_weights", "positive numbers")),
        ({"data.train_weights": "1,nan"}, ("data.train_weights", "positive numbers")),
        ({"seed": str(2**32)}, (f"seed = {2**32}", f"at most {2**32 - 1}")),
        ({"optim.decay_share": "0"}, ("optim.decay_share = 0.0", "more than 0")),
        (
            {"tokenizer.kind": "byte", "tokenizer.lowercase": "true"},
            ("tokenizer.lowercase", "'byte'", "to False"),
        ),
    ],
)
def test_what_cannot_work_is_said_with_its_numbers_and_the_way_out(overrides, says):
    with pytest.raises(UserError) as caught:
        config.load("quickstart", overrides)
    text = str(caught.value)
    assert all(word in text for word in says), text


def test_all_problems_are_reported_together():
    found = problems_of(
        model__num_head="4", optim__warmup_steps="99999", data__source="txt"
    )
    assert len(found) == 3


def test_overrides_are_taken_out_of_a_command_line_in_both_forms():
    rest, found = cli.split_overrides(
        ["train", "--config.a.b=1", "--workdir", "x", "--config.c", "2", "--config=y"]
    )
    assert rest == ["train", "--workdir", "x", "--config=y"]
    assert found == {"a.b": "1", "c": "2"}


def test_only_declared_keys_may_differ_when_a_run_is_continued():
    old = dict(config.items(config.base()))
    old |= {"model.d_ff": 1, "mesh.data": 1, "log.every": 1, "train.steps": 5}
    new = old | {"model.d_ff": 2, "mesh.data": 8, "log.every": 2, "train.steps": 9}
    assert resuming.differences(old, new) == ["model.d_ff: 1 in the run, now 2"]
    known = {k for k, _ in config.items(config.base())}
    for key in resuming.MAY_CHANGE_ON_RESUME:
        assert any(k == key or k.startswith(key + ".") for k in known)


def test_the_library_never_reads_a_key_that_may_be_missing():
    package = pathlib.Path(config.__file__).parent
    for path in package.rglob("*.py"):
        assert "config.get(" not in path.read_text(), path


def test_a_config_file_that_is_not_python_is_refused(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("config = {}\n")
    assert (
        "is not a Python file: a config's name ends in .py" in problems_of(str(file))[0]
    )


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ("quickstart", "model.encoder_layers"),
        ("quickstart", "model.decoder_layers"),
    ],
)
def test_a_number_of_layers_that_no_machine_can_shape_is_refused(spec, key):
    (problem,) = problems_of(spec, **{key.replace(".", "__"): "1001"})
    assert problem == f"{key} = 1001: must be at least 1 and at most 1000"
