"""Make S3 buckets that are missing: `python make_buckets.py NAME ...`. AWS_ variables name the server and the keys."""

import sys

import boto3


def main() -> None:
    """Make each bucket named on the command line, where it is not there yet."""
    s3 = boto3.client("s3")
    existing = {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}
    for name in sys.argv[1:]:
        if name not in existing:
            s3.create_bucket(Bucket=name)
        sys.stdout.write(f"{name}: {'there already' if name in existing else 'made'}\n")


if __name__ == "__main__":
    main()
