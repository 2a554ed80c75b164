"""No message about a service holds its credentials, in any form of the address or its parts."""

import pytest

from rag_eval.storage.secrets import shown_service, without_secrets

PASSWORD = "S3cret" + "Passw0rdXYZ"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (f"http://bob:{PASSWORD}@127.0.0.1:1/", "http://***@127.0.0.1:1/"),
        (f"https://{PASSWORD}@tracking.example.org/a@b", "https://***@tracking.example.org/a@b"),
        (f"http://bob:{PASSWORD}/x?y#z@host/", "http://***@host/"),
        (f"bob:{PASSWORD}@host:8000", "***@host:8000"),
        (
            f"postgresql://bob:%53{PASSWORD}@db:5432/runs?sslpassword={PASSWORD}&x=1",
            "postgresql://***@db:5432/runs?sslpassword=***&x=1",
        ),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
    ],
)
def test_an_address_is_shown_without_what_opens_it(address, shown):
    assert shown_service(address) == shown


def test_a_message_that_repeats_a_part_of_the_address_in_any_form_loses_it():
    address = f"http://bob:{PASSWORD}%21@127.0.0.1:1/?access_token=Tok3nTok3n"
    message = (
        f"API request to http://bob:{PASSWORD}%21@127.0.0.1:1/api failed for user bob "
        f"({PASSWORD}!), Tok3nTok3n refused"
    )
    assert (
        without_secrets(message, address)
        == "API request to http://***@127.0.0.1:1/api failed for user bob (***), *** refused"
    )
