"""What docs/operations/acl.md says of programs, with these programs."""

import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs/operations/acl.md"
# What brings machines: ../recipes, the program that runs.
recipes = sys.modules["__main__"]


def after_put_users_in_force(stage):
    # What could go wrong: the users are gone after the restart, or somebody gets in without a name.
    conf = stage.first.read("/etc/redis/redis.conf")
    assert re.search(r"^user admin on .*#\w{64} ", conf, re.M) and re.search(r"^user default off ", conf, re.M), conf
    said = stage.first.must("REDISCLI_AUTH=admin-secret redis-cli --user admin LOCK.LOG | cat")
    assert said.strip() == "", said


def test_redis_lock_run_works_as_the_user_for_jobs():
    # What could go wrong: the program asks for more than the line gives.
    [line] = re.findall(r"^ACL SETUSER (jobs .*)$", PAGE.read_text(), re.M)
    with recipes.Stage("jobs", ["10.0.0.1"]) as stage:
        stage.loaded()
        home = stage.first
        home.must("redis-cli ACL SETUSER " + " ".join(f"'{rule}'" for rule in line.split(" ")))
        home.must("redis-cli ACL LOG RESET")
        run = "REDISCLI_AUTH=change-me REDIS_LOCK_URL=redis://jobs@127.0.0.1:6379 redis-lock run -n"
        for options in ("-t 2s", "-s", "-N 3", "--note nightly"):
            # Long enough to renew it; and it asks whether it has it.
            said = home.must(f"{run} {options} lock:nightly -- sh -c 'sleep 1; redis-lock check && echo held'")
            assert said == "held\n", said
        assert home.must("redis-cli ACL LOG | cat").strip() == "", home.must("redis-cli ACL LOG")
        code, said = home.bash(f"{run} lock:other -- true")
        assert code == 69 and "NOPERM" in said, (code, said)
