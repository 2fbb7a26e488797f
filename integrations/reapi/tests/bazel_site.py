"""Bazel, unmodified, with a workspace that it can build without a network."""

import os
import signal
import subprocess

import reapi_site

# Repositories that Bazel 2.1 would download even for its own rules. The first two only forward to those.
FORWARDED = {
    "rules_cc": ("cc", "cc_binary cc_import cc_library cc_proto_library cc_test cc_toolchain cc_toolchain_suite"),
    "rules_java": ("java", "java_binary java_import java_library java_plugin java_proto_library java_runtime java_test java_toolchain"),
}
COVERAGE = 'filegroup(name = "coverage_report_generator", visibility = ["//visibility:public"])\n'

BUILD = """
genrule(
    name = "hello",
    srcs = ["in.txt"],
    outs = ["out.txt", "below/where.txt"],
    cmd = "tr a-z A-Z < $(location in.txt) > $(location out.txt); echo $$PWD > $(location below/where.txt)",
)
cc_binary(name = "main", srcs = ["main.cc", "main.h"])
sh_test(name = "check", size = "small", srcs = ["check.sh"], data = [":main", ":hello"])
sh_test(name = "fails", size = "small", srcs = ["fails.sh"])
genrule(name = "slow", outs = ["slow.txt"], cmd = "echo begun > begun.%(mark)s; exec -a %(mark)s sleep 1000")
%(many)s
"""
MANY = """
genrule(name = "many%(n)s", outs = ["many%(n)s.txt"], cmd = "sleep 0.2; echo %(mark)s %(n)s > $@")
"""
FILES = {
    "WORKSPACE": "",
    "in.txt": "hello\n",
    "main.h": 'static const char *const TEXT = "from C++";\n',
    "main.cc": '#include <cstdio>\n#include "main.h"\nint main() { std::puts(TEXT); }\n',
    "check.sh": '#!/bin/sh\n./main | grep -q "from C++" && grep -q HELLO out.txt\n',
    "fails.sh": "#!/bin/sh\necho it fails here; exit 7\n",
}


class Bazel:
    def __init__(self, program, directory, address, mark="mark", many=0):
        self.program, self.address = program, address
        self.root, self.workspace = directory / "bazel", directory / "workspace"
        self.workspace.mkdir()
        texts = [MANY % {"n": n, "mark": mark} for n in range(many)]
        build = BUILD % {"mark": mark, "many": "".join(texts)}
        for name, text in {**FILES, "BUILD": build}.items():
            path = self.workspace / name
            path.write_text(text)
            path.chmod(0o755 if name.endswith(".sh") else 0o644)
        self.overrides = []
        for name in [*FORWARDED, "remote_coverage_tools"]:
            repository = directory / "repositories" / name
            repository.mkdir(parents=True)
            (repository / "WORKSPACE").touch()
            (repository / "BUILD").write_text(COVERAGE if name not in FORWARDED else "")
            if name in FORWARDED:
                package, rules = FORWARDED[name]
                (repository / package).mkdir()
                (repository / package / "BUILD").touch()
                lines = [f"def {rule}(**attributes):\n    native.{rule}(**attributes)\n" for rule in rules.split()]
                (repository / package / "defs.bzl").write_text("\n".join(lines))
            self.overrides.append(f"--override_repository={name}={repository}")

    def command(self, what, *arguments):
        start = [self.program, f"--output_user_root={self.root}", "--nohome_rc", "--nosystem_rc", "--noworkspace_rc"]
        remote = [f"--remote_executor=grpc://{self.address}", "--spawn_strategy=remote", "--genrule_strategy=remote"]
        platform = '--remote_default_platform_properties=properties:{name:"OSFamily" value:"linux"}'
        return [*start, what, *remote, platform, "--color=no", "--curses=no", *self.overrides, *arguments]

    def run(self, what, *arguments, fails=False):
        """What it says."""
        done = subprocess.run(
            self.command(what, *arguments), cwd=self.workspace, capture_output=True, text=True, timeout=120
        )
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, said
        return said

    def begin(self, what, *arguments):
        return subprocess.Popen(
            self.command(what, *arguments), cwd=self.workspace, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def clean(self):
        """Forgets what was built; the server's action cache does not."""
        subprocess.run(
            [self.program, f"--output_user_root={self.root}", "--nohome_rc", "clean"],
            cwd=self.workspace, capture_output=True, check=True, timeout=60,
        )

    def shut_down(self):
        """Its server; what it installed is read-only."""
        command = [self.program, f"--output_user_root={self.root}", "--nohome_rc", "shutdown"]
        try:
            subprocess.run(command, cwd=self.workspace, capture_output=True, timeout=20)
        except subprocess.TimeoutExpired:
            # a build that has not ended
            for pid in reapi_site.processes(str(self.root)):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["chmod", "-R", "u+w", self.root], capture_output=True)

    def output(self, name):
        return (self.workspace / "bazel-bin" / name).read_text()
