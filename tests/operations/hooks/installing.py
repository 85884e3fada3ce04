"""Plays docs/operations/installing.md in a root of Debian, from the packages that make builds: see debian.py."""

import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from debian import LIBRARY, MADE, ONCE, ROOT, SERVERS, built, dist, fresh, lower, make, run, words
from machine import NotHere


def packages(stage):
    version = run(ROOT / "tools/version.py", "--debian").strip()
    files = [
        file for file in dist().glob("redis-lock*.deb")
        if "dbgsym" not in file.name and f"_{version.replace('~', '.')}-1_" in file.name
    ]  # fmt: skip
    assert len(files) == 2, files
    return fresh(stage, *files)


def load(debian):
    """The section "Loading the module", as the page has it."""
    page = (ROOT / "docs/operations/installing.md").read_text()
    section = page.split("\n## Loading the module\n")[1].split("\n## ")[0]
    debian.must(re.search(r"```sh\n(.*?)```", section, re.S)[1])


def works(stage, library=LIBRARY):
    """The server has the module of this file, as its own user, and the program takes a lock."""
    debian = stage.first
    assert library in debian.cli("MODULE", "LIST"), debian.cli("MODULE", "LIST")
    assert "lock_holders" in debian.cli("INFO", "lock") or "# lock" in debian.cli("INFO", "lock")
    assert "granted" in debian.must("redis-lock run check -- echo granted")
    status = debian.must(f"grep -h ^Uid: /proc/$({SERVERS})/status")
    assert status.split()[1] != "0", f"the server runs as root: {status}"
    mode = debian.chroot(f"stat -c '%a %U' {library}")[1].split()
    assert mode == ["755", "root"], mode
    prefix = library.split("/lib/")[0]
    debian.must(f"test -s {prefix}/share/man/man1/redis-lock.1 || test -s {prefix}/share/man/man1/redis-lock.1.gz")


def before_packages_for_debian(stage):
    packages(stage)


def after_packages_for_debian(stage):
    debian = stage.first
    # Installed, and off: the server starts as before.
    debian.must("systemctl restart redis-server")
    assert "lock" not in debian.cli("MODULE", "LIST")
    load(debian)
    works(stage)
    # What could go wrong: the module goes, and nobody says that the server cannot start any more.
    assert "still loads the module" in debian.must("apt-get remove -y redis-lock-module")


def before_a_tarball(stage):
    built()
    version, arch = run(ROOT / "tools/version.py").strip(), platform.machine()
    if arch != "x86_64":
        raise NotHere("the page names the tarball of x86-64")
    fresh(stage, dist() / f"redis-lock-{version}-linux-{arch}.tar.gz", dist() / "SHA256SUMS")


def after_a_tarball(stage):
    load(stage.first)
    works(stage)


def before_the_source(stage):
    built()
    fresh(stage)


def after_the_source(stage):
    load(stage.first)
    works(stage)
    stage.first.must("make uninstall")
    left = stage.first.chroot("find /usr -name '*redis*lock*'")[1]
    assert left == "", f"make uninstall leaves {left}"


def before_loading_the_module(stage):
    packages(stage).must("apt-get install -y ./redis-lock-module_*.deb ./redis-lock_*.deb")


def after_loading_the_module(stage):
    works(stage)
    debian = stage.first
    # CONFIG REWRITE, as Sentinel calls it, leaves one line, and the server starts again.
    debian.cli("CONFIG", "REWRITE")
    debian.must("systemctl restart redis-server")
    works(stage)
    # In an included file, the line comes twice.
    debian.must("mkdir /etc/redis/more; sed -n /^loadmodule/p /etc/redis/redis.conf >/etc/redis/more/lock.conf")
    debian.must("sed -i 's|^loadmodule .*|include /etc/redis/more/lock.conf|' /etc/redis/redis.conf")
    debian.must("chmod -R a+rX /etc/redis\nsystemctl restart redis-server")
    debian.cli("CONFIG", "REWRITE")
    assert debian.bash("systemctl restart redis-server")[0] != 0, "the page warns of what does no harm"
    debian.must("sed -i '/^include/d' /etc/redis/redis.conf")
    debian.must(f"chmod 644 {LIBRARY}")
    code, said = debian.bash("systemctl restart redis-server")
    assert code != 0 and "It does not have execute permissions" in said, said


def before_another_folder(stage):
    built()
    debian = fresh(stage)
    # What could go wrong: the page makes people write a file that they do not need.
    run(*debian.enter, "make", "-C", str(ROOT), "install", f"DESTDIR={debian.root}", "PREFIX=/opt",
        f"BUILT={built()}", env=words())  # fmt: skip
    debian.must("cp /etc/redis/redis.conf /root/redis.conf")
    debian.must("cat /opt/share/redis-lock/redis-lock.conf >>/etc/redis/redis.conf")
    code, said = debian.bash("systemctl restart redis-server")
    assert code != 0 and "failed to map segment from shared object" in said, said
    debian.must("cat /root/redis.conf >/etc/redis/redis.conf")


def after_another_folder(stage):
    works(stage, "/usr/local/lib/redis/modules/libredis_lock.so")


def before_an_image_without_docker(stage):
    if not os.environ.get("REDIS_LOCK_IMAGE"):
        raise NotHere("it takes minutes: REDIS_LOCK_IMAGE=1 runs it")
    lower()
    dist()
    fresh(stage)


def after_an_image_without_docker(stage):
    version = run(ROOT / "tools/version.py").strip()
    [archive] = (ROOT / "target/dist").glob(f"redis-lock-{version}-image-*.tar")
    # The page runs it by this name.
    assert f'"redis-lock:{version}"' in run("tar", "-xOf", str(archive), "index.json")


def before_verify_the_installation(stage):
    before_loading_the_module(stage)
    load(stage.first)


def test_the_tarball_has_the_same_bytes_again():
    # What could go wrong: times, owners, the order of files or the umask get into the archive.
    if platform.system() != "Linux":
        raise NotHere("tarballs are for Linux")
    dist()
    sums = []
    for zone, mask in (("UTC", "022"), ("Asia/Tokyo", "077")):
        with ONCE:
            command = f"umask {mask}; make tarball BUILT={MADE['built']} >&2; cat target/dist/SHA256SUMS"
            environment = words(TZ=zone, LC_ALL="C.UTF-8")
            said = run("sh", "-c", command, cwd=ROOT, env=environment).splitlines()
            sums.append([row for row in said if "-linux-" in row])
    assert sums[0] == sums[1] and len(sums[0]) == 2, sums


def test_the_page_says_which_c_library_the_files_need():
    system = platform.freedesktop_os_release()
    name = f"{system['NAME'].split()[0]} {system.get('VERSION_ID', '')}"
    page = (ROOT / "docs/operations/installing.md").read_text()
    row = re.search(rf"^\| {name}\b[^|]*\| ([0-9.]+) \|", page, re.M)
    if row is None:
        raise NotHere(f"the page does not name {name}")
    said = run(ROOT / "tools/package.sh", "abi", cwd=ROOT, env=words(BUILT=str(built())))
    number = re.search(r"libredis_lock\.so: glibc ([0-9.]+)", said)[1]
    assert number == row[1], f"the page says {row[1]}, and the module needs {said}"


def test_the_files_need_no_extension_of_the_processor():
    # The flags of the build are its own. What the compiler may use by default is what every x86-64 has.
    if platform.machine() != "x86_64":
        raise NotHere("the page names x86-64")
    script = (ROOT / "tools/package.sh").read_text()
    assert "export CARGO_ENCODED_RUSTFLAGS=" in script and "target-cpu" not in script
    features = set(re.findall(r'target_feature="(.*?)"', run("rustc", "--print", "cfg")))
    assert features <= {"fxsr", "sse", "sse2", "x87"}, features


def test_a_package_has_the_version_of_cargo():
    version = run(ROOT / "tools/version.py", "--debian").strip()
    for file in dist().glob("redis-lock*.deb"):
        assert run("dpkg-deb", "--field", str(file), "Version").strip() == f"{version}-1"
        depends = run("dpkg-deb", "--field", str(file), "Depends")
        assert "dbgsym" in file.name or re.search(r"libc6 \(>= 2\.\d+\)", depends), depends


def test_make_install_has_the_same_modes_over_any_umask_and_any_file():
    place = Path(tempfile.mkdtemp(dir=built()))
    root = place / "a folder" / "usr"

    def modes(umask):
        command = f"umask {umask}; make --no-print-directory install BUILT={built()} DESTDIR='{root.parent}'"
        run("sh", "-c", command, cwd=ROOT, env=words())
        found = {path.relative_to(root): path.stat().st_mode & 0o777 for path in root.rglob("*")}
        return {str(path): mode for path, mode in found.items()}

    first = modes("022")
    programs = {"lib/redis/modules/libredis_lock.so", "bin/redis-lock"}
    wrong = {name: oct(mode) for name, mode in first.items()
             if mode != (0o755 if name in programs or (root / name).is_dir() else 0o644)}  # fmt: skip
    assert not wrong, wrong
    library = root / "lib/redis/modules/libredis_lock.so"
    for path in root.rglob("*"):
        if path.is_file():
            path.chmod(0o600)
    with open(library, "rb") as mapped:
        old, size = os.fstat(mapped.fileno()).st_ino, library.stat().st_size
        assert modes("077") == first
        # A server has the old file in memory: it is another one, and whole.
        assert library.stat().st_ino != old and os.fstat(mapped.fileno()).st_size == size


def test_make_uninstall_takes_its_own_files_and_leaves_those_of_others():
    root = Path(tempfile.mkdtemp(dir=built()))
    others = ["usr/local/share/redis-lock/mine.conf", "usr/local/lib/redis/modules/other.so"]
    others += ["usr/local/share/doc/redis-lock/notes", "usr/local/lib/debug/.build-id/00/1.debug"]
    for name in others:
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
    # A version before this one, with symbols of its own.
    older = root.parent / "older"
    shutil.copytree(built(), older, ignore=shutil.ignore_patterns("dist", "tmp*"))
    shutil.copy(older / "redis-lock", older / "libredis_lock.so")
    where = {"DESTDIR": str(root), "PREFIX": "/usr/local"}
    for folder in (older, built()):
        words_typed = [f"{name}={value}" for name, value in {**where, "BUILT": folder}.items()]
        run("make", "--no-print-directory", "install", *words_typed, cwd=ROOT, env=words())
    make("uninstall", *(f"{name}={value}" for name, value in where.items()))
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert left == set(others), left
    assert (root / "usr/local/bin").is_dir(), "a folder that the system has anyway is gone"


def test_a_prefix_that_redis_conf_cannot_name_is_refused():
    root = Path(tempfile.mkdtemp(dir=built()))
    for prefix in ("relative", "/a folder", "/a&b", '/a"b'):
        command = ["make", "install", f"BUILT={built()}", f"DESTDIR={root}", f"PREFIX={prefix}"]
        done = subprocess.run(command, cwd=ROOT, env=words(), capture_output=True, text=True)
        assert done.returncode != 0 and f"PREFIX is {prefix}" in done.stderr, done
    assert list(root.iterdir()) == []


def test_what_is_not_a_package_gets_no_checksum():
    # What could go wrong: half of a file, of a run that was interrupted, is declared good.
    with ONCE:
        place = ROOT / "target/dist"
        place.mkdir(parents=True, exist_ok=True)
        names = [place / "redis-lock-1-linux-x.tar.gz.new.1", place / "notes"]
        for name in names:
            name.touch()
        try:
            run(ROOT / "tools/package.sh", "sums", cwd=ROOT, env=words())
            listed = (place / "SHA256SUMS").read_text()
        finally:
            for name in names:
                name.unlink()
    assert not any(name.name in listed for name in names), listed


def test_the_address_of_the_repository_goes_to_every_package():
    # The first step of RELEASING.md. No address here leads anywhere.
    copy = Path(tempfile.mkdtemp(dir=built()))
    files = run("git", "ls-files", "-z", cwd=ROOT).rstrip("\0").split("\0")
    for name in files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    # The tools look at what git knows.
    run("git", "init", "--quiet", cwd=copy)
    tag = ["tools/version.py", "--tag", f"v{run('tools/version.py', cwd=copy).strip()}"]
    done = subprocess.run(tag, cwd=copy, capture_output=True, text=True)
    assert done.returncode == 1 and "lead nowhere" in done.stderr, done
    # Twice: an address may change.
    for home in ("code.example/owner/locks", "other.example/locks"):
        address = f"https://{home}"
        run("tools/version.py", "--home", address, cwd=copy)
        run("tools/version.py", "--check", cwd=copy)
        assert run("tools/version.py", "--home", cwd=copy).strip() == address

        def text(name):
            return (copy / name).read_text()

        crates = json.loads(run("cargo", "metadata", "--no-deps", "--offline", "--format-version=1", cwd=copy))
        named = {crate["name"] for crate in crates["packages"] if crate["repository"] == address}
        assert named == {"redis-lock", "redis-lock-cli", "redis-lock-client"}, named
        assert json.loads(text("clients/node/package.json"))["repository"]["url"] == f"git+{address}.git"
        assert f'\n[project.urls]\nRepository = "{address}"\n' in text("clients/python/pyproject.toml")
        assert text("clients/java/pom.xml").count(f"<url>{address}</url>") == 2
        assert f"module {home}/clients/go\n" in text("clients/go/go.mod")
        assert f'"{home}/clients/go/redislock"' in text("tests/helpers/agents/go/main.go")
        left = [name for name in files if b"redis-lock.example/clients" in (copy / name).read_bytes()]
        assert left == ["tests/operations/hooks/installing.py"], left
        assert f"git clone {address}.git redis-lock && cd redis-lock\n" in text("README.md")
        # A reader of a registry has no file beside the page.
        for name in ("go", "java", "node", "python", "rust"):
            page = text(f"clients/{name}/README.md")
            assert f"]({address}/blob/main/docs/guide/" in page, name
            left = re.findall(r"\]\((?!https://|#).*?\)", page)
            assert not left, (name, left)
        run("tools/links.py", cwd=copy)
    run(*tag, cwd=copy)
    if shutil.which("dpkg-deb"):
        run("tools/package.sh", "deb", cwd=copy, env=words(BUILT=str(built())))
        homepages = [run("dpkg-deb", "--field", file, "Homepage").strip() for file in copy.glob("target/dist/*.deb")]
        assert homepages == [address] * 3, homepages
    # What comes later is compared with the address as well.
    page = copy / "clients/python/README.md"
    page.write_text(page.read_text() + f"[a](../../docs/README.md) [b]({address}/blob/main/docs/b.md)\n")
    for tool, said in (("version.py --check", "python/README.md has"), ("links.py", "docs/b.md: there is no")):
        done = subprocess.run(f"tools/{tool}", shell=True, cwd=copy, capture_output=True, text=True)
        assert done.returncode == 1 and said in done.stdout, done
    for wrong in ("http://code.example/owner/locks", "https://code.example", "https://code.example/locks.git"):
        done = subprocess.run(["tools/version.py", "--home", wrong], cwd=copy, capture_output=True, text=True)
        assert done.returncode != 0 and "is not like https://" in done.stderr, done
