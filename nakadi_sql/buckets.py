"""How DuckDB reads tables from S3."""

from __future__ import annotations

from urllib.parse import urlsplit

from nakadi_sql.columns import quoted_text
from nakadi_sql.errors import TablesUnreadable


def bucket_secret() -> str:
    """The statement that gives DuckDB the credentials, the region and the endpoint that the AWS SDK would use."""
    from nakadi.engines.common.aws_sessions import new_session

    session = new_session()
    credentials = session.get_credentials()
    if credentials is None:
        raise TablesUnreadable("The tables are in a bucket, and there are no credentials for AWS.")
    client = session.create_client("s3", region_name=session.get_config_variable("region") or "us-east-1")
    frozen, endpoint = credentials.get_frozen_credentials(), urlsplit(client.meta.endpoint_url)
    values = {
        "KEY_ID": frozen.access_key,
        "SECRET": frozen.secret_key,
        "SESSION_TOKEN": frozen.token,
        "REGION": client.meta.region_name,
    }
    if not endpoint.netloc.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        values |= {"ENDPOINT": endpoint.netloc, "URL_STYLE": "path"}
    listed = ", ".join(f"{name} {quoted_text(value)}" for name, value in values.items() if value)
    return f"CREATE SECRET (TYPE s3, {listed}, USE_SSL {str(endpoint.scheme == 'https').lower()})"
