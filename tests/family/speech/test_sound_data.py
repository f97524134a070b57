"""WAV files of every kind, log-mel frames by their definition, folders and tables."""

import numpy as np
import pytest

from transformer_jax.base.errors import UserError
from transformer_jax.config import base
from transformer_jax.family.speech import log_mel, wav
from transformer_jax.family.speech import sounds as sound
from transformer_jax.family.speech.recordings import open_recordings

WAVE = 0.5 * np.sin(2 * np.pi * 440 * np.arange(3001) / 16_000)


def as_bytes(values, kind):
    """The samples of ±1 in a format of WAV, written without NumPy's conversions."""
    if kind == "u8":
        return bytes(round(128 + 127 * v) for v in values)
    if kind.startswith("i"):
        bits = int(kind[1:])
        whole = (round(v * (2 ** (bits - 1) - 1)) for v in values)
        return b"".join(w.to_bytes(bits // 8, "little", signed=True) for w in whole)
    return np.asarray(values, f"<f{int(kind[1:]) // 8}").tobytes()


def make_wav(data, kind="i16", channels=1, rate=16_000, extensible=False, more=b""):
    code, bits = (3 if kind[0] == "f" else 1), int(kind[1:])
    numbers = [
        (0xFFFE if extensible else code, 2), (channels, 2), (rate, 4), (0, 4), (0, 2),
        (bits, 2),
    ]  # fmt: skip
    if extensible:
        numbers += [(22, 2), (bits, 2), (0, 4), (code, 2), (0x800000, 14)]
    form = b"".join(n.to_bytes(size, "little") for n, size in numbers)

    def chunk(name, content):
        even = content + b"\0" * (len(content) % 2)
        return name + len(content).to_bytes(4, "little") + even

    return chunk(b"RIFF", b"WAVE" + chunk(b"fmt ", form) + more + chunk(b"data", data))


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(
    ("kind", "error"),
    [("u8", 1e-2), ("i16", 1e-4), ("i24", 1e-6), ("i32", 1e-7), ("f32", 1e-7),
     ("f64", 1e-7)],
)  # fmt: skip
def test_samples_of_every_width_are_read(kind, error, extensible):
    content = make_wav(as_bytes(WAVE, kind), kind, extensible=extensible)
    samples, rate = wav.decode(content)
    assert rate == 16_000 and samples.dtype == np.float32
    np.testing.assert_allclose(samples, WAVE, atol=error)


def test_samples_with_gaps_and_a_second_part_of_sound_are_refused():
    packed = make_wav(as_bytes(WAVE, "i24"), "i24")

    def with_frame(size):
        return packed[:32] + size.to_bytes(2, "little") + packed[34:]

    assert wav.decode(with_frame(3))[0].tolist() == wav.decode(packed)[0].tolist()
    with pytest.raises(
        ValueError, match="4 bytes hold 1 samples of 24 bits, with gaps"
    ):
        wav.decode(with_frame(4))
    for name in ("data", "fmt "):
        begin = packed.index(name.encode())
        part = packed[begin:] if name == "data" else packed[begin : begin + 24]
        with pytest.raises(
            ValueError, match=f"it has two parts '{name}', and only one"
        ):
            wav.decode(packed + part)


def test_channels_are_averaged_and_other_parts_passed_over():
    both = np.stack([WAVE, -0.5 * WAVE], axis=1).reshape(-1)
    more = b"LIST" + (3).to_bytes(4, "little") + b"abc\0"
    samples, _ = wav.decode(make_wav(as_bytes(both, "i16"), channels=2, more=more))
    np.testing.assert_allclose(samples, 0.25 * WAVE, atol=1e-4)


def test_written_samples_are_read_again(tmp_path):
    wav.write(tmp_path / "a.wav", WAVE)
    np.testing.assert_allclose(wav.read(tmp_path / "a.wav"), WAVE, atol=1e-4)


@pytest.mark.parametrize("rate", [8000, 11_025, 44_100, 48_000])
def test_a_tone_of_another_rate_keeps_its_frequency(rate):
    time = np.arange(rate) / rate
    tone = np.sin(2 * np.pi * 437 * time).astype(np.float32)
    found = wav.resample(tone, rate)
    assert len(found) == 16_000
    expected = np.sin(2 * np.pi * 437 * np.arange(16_000) / 16_000)
    np.testing.assert_allclose(found[500:-500], expected[500:-500], atol=2e-2)


def test_frequencies_above_the_new_rate_are_left_out():
    high = np.sin(2 * np.pi * 9500 * np.arange(48_000) / 48_000).astype(np.float32)
    assert np.abs(wav.resample(high, 48_000)).max() < 1e-3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"fLaC\0\0\0\x22", "it is FLAC, and only WAV is read: convert it.*ffmpeg"),
        (b"no sound at all", "does not begin as a WAV file does"),
        (make_wav(b""), "it holds no samples"),
        (make_wav(b"\0\0", rate=7), "it has 7 samples a second"),
        (make_wav(b"\0" * 4, "i64"), "of format 1 with 64 bits"),
        (make_wav(b"\0\0", channels=0), "it has no channel"),
        (make_wav(as_bytes([np.nan], "f32"), "f32"), "samples that are not finite"),
        (make_wav(b"\0\0")[:30], "it has no sound"),
    ],
)  # fmt: skip
def test_other_files_are_refused_by_name(content, message, tmp_path):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(
        wav.NoSound, match=f"a.wav cannot be read as sound: .*{message}"
    ):
        wav.read(tmp_path / "a.wav")


def direct_log_mel(samples, bands):
    """The definition, with a sum for each frequency and a loop over the triangles."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    times = np.arange(400)
    rows = []
    for begin in range(0, len(samples) - 400 + 1, 160):
        piece = window * samples[begin : begin + 400]
        power = [
            abs(np.sum(piece * np.exp(-2j * np.pi * k * times / 512))) ** 2
            for k in range(257)
        ]
        top = 2595 * np.log10(1 + 8000 / 700)
        low = 2595 * np.log10(1 + 20 / 700)
        row = []
        for band in range(bands):
            mels = [low + (top - low) * (band + i) / (bands + 1) for i in range(3)]
            left, middle, right = (700 * (10 ** (m / 2595) - 1) for m in mels)
            total = 0.0
            for k in range(257):
                hertz = k * 16_000 / 512
                if left < hertz <= middle:
                    total += power[k] * (hertz - left) / (middle - left)
                elif middle < hertz < right:
                    total += power[k] * (right - hertz) / (right - middle)
            row.append(total)
        rows.append(row)
    logs = np.log(np.maximum(rows, 1e-8 * np.max(rows)))
    return (logs - logs.mean(0)) / (logs.std(0) + 1e-3)


def test_frames_agree_with_a_direct_transform():
    samples = np.random.RandomState(2).standard_normal(1211) * np.linspace(0.1, 1, 1211)
    found = log_mel.log_mel(samples, 23)
    assert found.shape == (log_mel.frames_of(1211), 23) == (6, 23)
    np.testing.assert_allclose(found, direct_log_mel(samples, 23), atol=3e-3)


def test_loudness_makes_no_difference_and_silence_is_finite():
    samples = np.random.RandomState(3).standard_normal(2000)
    quiet = log_mel.log_mel(1e-3 * samples, 20)
    np.testing.assert_allclose(log_mel.log_mel(samples, 20), quiet, atol=1e-2)
    assert np.isfinite(log_mel.log_mel(np.zeros(37), 20)).all()


def test_sounds_are_padded_with_silence_to_the_longest():
    samples = np.random.RandomState(4).standard_normal(3000)
    for features in log_mel.FEATURES:
        data = base(task="speech").data
        data.features, data.pad, data.max_length = features, True, 31
        found = sound.make_frames(samples, data)
        kind = log_mel.FEATURES[features]
        silence = np.zeros(kind.samples(31) - 3000)
        wanted = kind.compute(np.concatenate([samples, silence]), data.bands)
        assert len(found) == 31 == kind.count(kind.samples(31))
        assert kind.count(kind.samples(31) - 1) == 30
        np.testing.assert_array_equal(found, wanted)
        prints = {sound.fingerprint(data)}
        for name, value in (("max_length", 30), ("pad", False), ("bands", 7)):
            data[name] = value
            prints.add(sound.fingerprint(data))
        assert len(prints) == 4


def test_whisper_hears_a_tone_where_slaneys_mel_has_it():
    """Below 1000 Hz a mel is 66.7 Hz, so a band of 80 is 37.24 Hz wide."""
    seconds = np.arange(16_000) / 16_000
    found = log_mel.whisper(np.sin(2 * np.pi * 500 * seconds), 80)
    mels = 15 + 27 * np.log(8) / np.log(6.4)
    assert (found[50].argmax() + 1) * mels / 81 == pytest.approx(7.5, abs=0.5)
    assert found.max() - found.min() == pytest.approx(2.0, abs=1e-5)  # 8 / 4
    area = log_mel.slaney_filters(20).sum(axis=0) * 16_000 / 400
    np.testing.assert_allclose(area, 1, rtol=0.2)


@pytest.fixture
def libri(tmp_path):
    """A folder in LibriSpeech's layout: two chapters of one speaker."""
    for chapter, lines in {"7": ["A FINE DAY", "SO IT IS"], "9": ["YES"]}.items():
        place = tmp_path / "dev" / "3" / chapter
        place.mkdir(parents=True)
        names = [f"3-{chapter}-{i:04d}" for i in range(len(lines))]
        rows = (f"{n} {t}\n" for n, t in zip(names, lines, strict=True))
        (place / f"3-{chapter}.trans.txt").write_text("".join(rows))
        for i, name in enumerate(names):
            wav.write(place / f"{name}.wav", WAVE[: 1000 + 100 * i])
    return tmp_path


def open_with(**keys):
    config = base(task="speech")
    config.data.update(keys)
    return open_recordings(config.data)


def test_a_folder_of_librispeech_is_read_with_its_transcripts(libri):
    records = open_with(
        source="librispeech", folder=str(libri), validation_files="dev"
    ).read("validation")
    assert [r["text"] for r in records] == ["A FINE DAY", "SO IT IS", "YES"]
    assert [len(r["samples"]) for r in records] == [1000, 1100, 1000]
    assert records.where(1).endswith("3-7.trans.txt, line 2")


def test_a_missing_file_is_named_with_its_line(libri):
    (libri / "dev/3/7/3-7-0001.wav").rename(libri / "dev/3/7/3-7-0001.flac")
    source = open_with(source="librispeech", folder=str(libri), test_files="dev")
    with pytest.raises(
        UserError,
        match=r"3-7.trans.txt, line 2: there is .*0001.flac, "
        r"but no 3-7-0001.wav, and only WAV is read: convert all",
    ):
        source.read("test")
    (libri / "dev/3/7/3-7-0001.flac").unlink()
    source = open_with(source="librispeech", folder=str(libri), test_files="dev")
    with pytest.raises(UserError, match=r"line 2: there is no file .*0001.wav"):
        source.read("test")


def test_a_table_of_paths_and_transcripts_is_read(libri):
    table = libri / "table.tsv"
    table.write_text("dev/3/7/3-7-0000.wav\ta fine day\n")
    keys = {"source": "tsv", "folder": str(libri), "train_files": "table.tsv"}
    [record] = open_with(**keys).read("train")
    assert record["text"] == "a fine day" and len(record["samples"]) == 1000
    table.write_text("dev/3/7/3-7-0000.wav a fine day\n")
    with pytest.raises(
        UserError, match="table.tsv, line 1 has 0 tabs, not 1: a line is"
    ):
        open_with(**keys).read("train")
    table.write_text("dev/3/7/3-7-0000.wav\t \n")
    with pytest.raises(
        UserError, match="table.tsv, line 1 has no transcript: a line is"
    ):
        open_with(**keys).read("train")


def test_a_broken_file_is_named_with_the_line_of_its_transcript(libri):
    (libri / "dev/3/9/3-9-0000.wav").write_bytes(b"nothing")
    records = open_with(
        source="librispeech", folder=str(libri), validation_files="dev"
    ).read("validation")
    with pytest.raises(
        UserError, match=r"3-9.trans.txt, line 1: .*3-9-0000.wav cannot"
    ):
        records[2]


def test_other_sound_or_another_transcript_changes_the_fingerprint(libri):
    def fingerprint():
        keys = {"source": "librispeech", "folder": str(libri), "test_files": "dev"}
        return open_with(**keys).read("test").fingerprint

    first = fingerprint()
    assert fingerprint() == first
    wav.write(libri / "dev/3/9/3-9-0000.wav", WAVE[:900])
    second = fingerprint()
    (libri / "dev/3/9/3-9.trans.txt").write_text("3-9-0000 NO\n")
    assert len({first, second, fingerprint()}) == 3


def test_missing_folders_are_listed_before_anything_is_read(tmp_path):
    problems = open_with(
        source="librispeech", folder=str(tmp_path), train_files="train-clean-100"
    ).find_problems()
    assert problems == [
        "data.validation_files is empty: name a folder with *.trans.txt in it or below",
        f"data.train_files: there is no file {tmp_path}/train-clean-100/**/*.trans.txt",
    ]


def test_a_file_that_is_too_large_or_too_long_is_refused(tmp_path, monkeypatch):
    wav.write(tmp_path / "a.wav", np.zeros(16_000 * 3))
    assert len(wav.read(tmp_path / "a.wav")) == 48_000
    monkeypatch.setattr(wav, "LONGEST", 2)
    with pytest.raises(wav.NoSound, match="it lasts 3 s, more than 2: cut it"):
        wav.read(tmp_path / "a.wav")
    monkeypatch.setattr(wav, "LARGEST", 90_000)
    with pytest.raises(wav.NoSound, match="it has more than 90,000 bytes: cut it, or"):
        wav.read(tmp_path / "a.wav")


def test_sound_that_was_cut_short_is_refused_unless_its_size_was_unknown(tmp_path):
    path = tmp_path / "a.wav"
    wav.write(path, np.zeros(1000))
    whole = path.read_bytes()
    path.write_bytes(whole[:-500])
    said = (
        "a.wav cannot be read as sound: it was cut short: of 2,000 bytes of sound 1,5"
    )
    with pytest.raises(wav.NoSound, match=said):
        wav.read(path)
    for size in (0xFFFF_FFFF, 0x7FFF_FFFF - 36):  # ffmpeg and sox, into a pipe
        place = whole.index(b"data") + 4
        piped = whole[:place] + size.to_bytes(4, "little") + whole[place + 4 :]
        path.write_bytes(piped)
        assert len(wav.read(path)) == 1000


def test_a_path_that_no_file_can_have_is_named_with_its_line(tmp_path):
    table = tmp_path / "table.tsv"
    keys = {"source": "tsv", "folder": str(tmp_path), "train_files": "table.tsv"}
    for path in ("a" * 300, "a/" * 3000, "/", "..", "a\0b", ""):
        table.write_text(f"{path}\ta fine day\n")
        with pytest.raises(UserError, match="table.tsv, line 1: there is no file"):
            open_with(**keys).read("train")
    (tmp_path / "a.trans.txt").write_text("a/b A FINE DAY\n")
    with pytest.raises(UserError, match="a.trans.txt, line 1: there is no file"):
        open_with(source="librispeech", test_files=str(tmp_path)).read("test")
