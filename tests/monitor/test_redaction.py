"""Secrets do not reach what is told of a failure, and what is needed to mend it does."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.monitor.redaction import MASK, Redactor, is_secret_name, secret_values


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD_SECRET", "DB_PASSWORD", "--api-key",
        "--auth-token", "dbPassword", "apiKey", "client.secret", "GOOGLE_CREDENTIALS", "SESSION_COOKIE",
        "SSH_PRIVATE_KEY", "SLACK_TOKENS", "tokens_secret", "ADMIN_TOKEN", "INFLUXDB_ADMIN_TOKEN",
        "GOOGLE_ADS_DEVELOPER_TOKEN", "SCRAPER_TOKEN", "RENEW_TOKEN", "LAUNCHPAD_TOKEN", "PGPASSWORD",
        "DBPASSWORD", "DB_PASS", "SMTP_PASS", "MYSQL_PWD", "smtp_pass", "OPENAI_KEY", "openai_key",
        "GITHUB_PAT", "MYSQL_PASSWD",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    """As variables, options and keys of configurations are called."""
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM", "max_tokens", "pad_token", "eos_token_id", "num-tokens", "KEYBOARD",
        "sort_key", "MASTER_PORT", "PWD", "XDG_SESSION_TYPE", "token_type", "HF_TOKEN_PATH", "SSH_AUTH_SOCK",
        "key", "monkey", "CUDA_VISIBLE_DEVICES", "tokens_per_second", "OLDPWD", "OLD_PWD", "forward_pass",
        "compass", "num_pass", "SORT_KEY", "KEY", "MIN_TOKENS", "MAX_TOKEN_LENGTH", "PGPASSFILE",
    ],
)  # fmt: skip
def test_names_that_only_sound_so(name: str) -> None:
    """A script's own words stay readable."""
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("HF_TOKEN=hf_abc is wrong", "HF_TOKEN=*** is wrong"),
        ("{'api_key': 'abc-def', 'lr': 0.1}", "{'api_key': '***', 'lr': 0.1}"),
        ('"password": "x y"', '"password": "***"'),
        ("X-Auth-Token: abc123def", "X-Auth-Token: ***"),
        ("train.py --api-key abc --lr 0.1", "train.py --api-key *** --lr 0.1"),
        ("train.py --token=abc", "train.py --token=***"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("cannot reach https://me:pass@host/x", "cannot reach https://me:***@host/x"),
        ("used key sk-abcdefghijklmnopqrstuvwx in it", "used key *** in it"),
        ("AKIAABCDEFGHIJKLMNOP", "***"),
        ("\x1b[31mHF_TOKEN=abc\x1b[0m", "\x1b[31mHF_TOKEN=***"),
        ("RuntimeError: HF_TOKEN=abc is wrong", "RuntimeError: HF_TOKEN=*** is wrong"),
        ("DB_PASSWORD=abc,defghijk", "DB_PASSWORD=***"),
        ("Config(api_key=abc,lr=0.1)", "Config(api_key=***,lr=0.1)"),
        ("https://h/x?token=abc&page=2", "https://h/x?token=***&page=2"),
        (r'password="a\"b" user', 'password="***" user'),
        ("password='cut of", "password='***"),
        ("github_pat_11ABCDEFG0abcdefghijklmnop", "***"),
        ("ghs_abcdefghijklmnopqrstuvwx ghu_abcdefghijklmnopqrstuvwx", "*** ***"),
        ("max_tokens=4096", "max_tokens=4096"),
        ("access_token=None", "access_token=None"),
        ("invalid_token_ids: 77", "invalid_token_ids: 77"),
        ("raise KeyError('HF_TOKEN')", "raise KeyError('HF_TOKEN')"),
        (
            "RuntimeError: CUDA error: an illegal memory access",
            "RuntimeError: CUDA error: an illegal memory access",
        ),
        (
            '  File "/v/torch/serialization.py", line 1549, in load',
            '  File "/v/torch/serialization.py", line 1549, in load',
        ),
        ("connect [127.0.1.1]:4242: Connection refused", "connect [127.0.1.1]:4242: Connection refused"),
    ],
)
def test_texts(text: str, masked: str) -> None:
    """In the forms in which programs print settings, commands, headers and addresses."""
    assert Redactor().mask(text) == masked


def test_values_are_masked_wherever_they_stand() -> None:
    """Also in the middle of a word; short ones, numbers and those of other variables are not."""
    environ = {
        "HF_TOKEN": "tok-abc.def*ghi",
        "HOME": "/home/me-and-you",
        "PIN_SECRET": "1234567890",
        "A_TOKEN": "abc",
    }
    values = secret_values(
        environ, ["--lr", "0.1", "--db-password", "long-enough", "api_key=another-one", "--token"]
    )
    assert set(values) == {"tok-abc.def*ghi", "long-enough", "another-one"}
    shown = Redactor(values).mask("cannot use <tok-abc.def*ghi> of /home/me-and-you with long-enough")
    assert shown == f"cannot use <{MASK}> of /home/me-and-you with {MASK}"


def test_each_line_of_a_value_is_masked() -> None:
    """Texts are told line by line; what is short is a word that texts have."""
    key = "-----BEGIN KEY-----\nb3BlbnNzaC1rZXk\n  AAAAB3NzaC1yc2E\nend\n"
    mask = Redactor(secret_values({"SSH_PRIVATE_KEY": key, "HOME": "/home/me-and-you"})).mask
    shown = [mask(line) for line in ("read b3BlbnNzaC1rZXk.", "AAAAB3NzaC1yc2E", "the end", key)]
    assert shown == [f"read {MASK}.", MASK, "the end", MASK]


@pytest.mark.parametrize(
    "piece",
    [
        "aB3/+", "a", "a-b-", "a=", "token=", "-eyJabcdefghijk", " ", "token='", 'token="\\', "x://a:", ",a",
        "--token ", "token: 'x\n", "password", "a.b.c:", "token=a,b-",
    ],
)  # fmt: skip
def test_time_grows_as_the_text_does(piece: str) -> None:
    """A dumped tensor or a picture in a message is masked on the way to a restart.

    A megabyte takes 0.1 to 0.5 s; where each character was a place to begin at, half a minute.
    """
    text = "token" + piece * ((1 << 20) // len(piece))
    began_at = time.process_time()
    Redactor(["hunter22hunter22"]).mask(text)
    assert time.process_time() - began_at < 10.0


@given(st.text(min_size=8), st.text(), st.text())
def test_no_value_survives(value: str, before: str, after: str) -> None:
    """Whatever it is and whatever is around it."""
    values = secret_values({"MY_SECRET": value})
    masked = Redactor(values).mask(f"{before}{value}{after}")
    assert not values or value not in masked or value in before + after or value in MASK * 3


@given(st.text())
def test_mask_is_total_and_idempotent_on_lines(text: str) -> None:
    """Any text can be masked, and a masked one stays as it is."""
    once = Redactor().mask(text)
    assert Redactor().mask(once) == once
