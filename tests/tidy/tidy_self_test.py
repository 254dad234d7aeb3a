#!/usr/bin/env python3
"""Plants every violation that tidy.py looks for, one at a time, in a small
tree that is clean without it, and expects exactly that one to be reported."""

import os
import subprocess
import tempfile
import unittest

import tidy

CLEAN = {
    "CMakeLists.txt": "add_subdirectory(server)\n",
    "README.md": "text\n",
    ".gitignore": "/build/\n",
    "proto/a.proto": "x\n",
    "proto/google/rpc/status.proto": "// " + "x" * 200 + "\n",
    "server/CMakeLists.txt":
        "add_subdirectory(admin)\nadd_subdirectory(core)\n"
        "add_subdirectory(rpc)\n"
        "add_subdirectory(store/postgres)\n"
        "add_library(app app.cc required_threads.cc)\n"
        "add_executable(idempotency-server main.cc)\n",
    "server/app.cc": "#include <grpcpp/grpcpp.h>\nstd::jthread lane;\n",
    "server/required_threads.cc": "auto create = &pthread_create;\n",
    "server/main.cc": '#include "server/app.h"\n',
    "server/core/CMakeLists.txt": "add_library(core engine.cc)\n",
    "server/admin/CMakeLists.txt": "add_library(admin metrics.cc)\n",
    "server/admin/metrics.cc":
        '#include <prometheus/registry.h>\n#include "server/core/engine.h"\n',
    "server/core/engine.cc":
        '#include "server/core/engine.h"\n'
        "// a std::thread in a comment\nstd::thread::id id;\n",
    "server/rpc/CMakeLists.txt": "add_library(rpc service.cc)\n",
    "server/rpc/service.cc":
        '#include <grpcpp/grpcpp.h>\n#include "server/core/engine.h"\n'
        '#include "idempotency/v1/idempotency.grpc.pb.h"\n',
    "server/store/postgres/CMakeLists.txt": "add_library(pg\n  store.cc)\n",
    "server/store/postgres/store.cc":
        '#include <pqxx/pqxx>\n#include "server/core/store.h"\n',
    "client/CMakeLists.txt":
        "add_library(client client.cc once_machine.cc)\n"
        "add_subdirectory(transaction)\n",
    "client/client.cc": "#include <grpcpp/grpcpp.h>\n",
    "client/once_machine.cc": '#include "client/once_machine.h"\n',
    "client/transaction/CMakeLists.txt":
        "add_library(transaction once_in_transaction.cc)\n",
    "client/transaction/once_in_transaction.h": '#include "client/retry.h"\n',
    "client/transaction/once_in_transaction.cc":
        '#include "server/core/store.h"\n'
        '#include "server/rpc/validation.h"\n'
        '#include "server/store/postgres/transaction_store.h"\n',
    "migrations/000001_init.up.sql": "select 1;\n",
    "migrations/000001_init.down.sql": "select 1;\n",
    "tests/CMakeLists.txt": "\n",
    "tests/unit/CMakeLists.txt":
        "idempotency_test(a a_test.cc LABELS unit)\n"
        "add_test(NAME b COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/b_test.sh)\n",
    "tests/unit/a_test.cc": '#include "server/core/engine.h"\n',
    "tests/unit/b_test.sh": "#!/bin/sh\n",
}

ARROWS = {
    "server/core/engine.cc": [
        "<grpcpp/grpcpp.h>", "<grpc/grpc.h>", "<pqxx/pqxx>", "<libpq-fe.h>",
        "<google/protobuf/message.h>", '"google/rpc/status.pb.h"',
        '"idempotency/v1/idempotency.pb.h"', '"server/rpc/service.h"',
        '"server/store/postgres/store.h"', '"server/app.h"',
        '"client/client.h"', '"tests/support/x.h"', "<prometheus/registry.h>"],
    "server/rpc/service.cc": [
        "<pqxx/pqxx>", "<libpq-fe.h>", '"server/store/postgres/store.h"',
        '"server/app.h"', '"client/client.h"', "<prometheus/registry.h>"],
    "server/store/postgres/store.cc": [
        "<grpcpp/grpcpp.h>", '"server/rpc/service.h"', '"server/app.h"',
        '"idempotency/v1/idempotency.pb.h"', '"client/client.h"'],
    "server/app.cc": [
        "<pqxx/pqxx>", '"client/client.h"', "<prometheus/registry.h>"],
    "server/main.cc": ["<pqxx/pqxx>", "<libpq-fe.h>"],
    "server/admin/metrics.cc": [
        "<grpcpp/grpcpp.h>", "<pqxx/pqxx>", '"server/rpc/service.h"'],
    "client/client.cc": ['"server/core/types.h"', "<pqxx/pqxx>",
                         '"tests/support/x.h"'],
    "client/once_machine.cc": [
        "<grpcpp/grpcpp.h>", '"grpcpp/client_context.h"',
        '"client/client.h"', '"client/async_client.h"'],
    "client/http/middleware.h": ["<grpcpp/grpcpp.h>", "<httplib.h>"],
    # One file alone may include a few headers of the server.
    "client/transaction/once_in_transaction.h": [
        '"server/core/store.h"', '"server/store/postgres/transaction_store.h"',
        "<pqxx/pqxx>"],
}
BEYOND_THE_EXCEPTION = [
    '"server/app.h"', '"server/core/engine.h"', '"server/rpc/service.h"',
    '"server/store/postgres/connection.h"', "<pqxx/pqxx>"]


class TidyTest(unittest.TestCase):

    def report(self, changes, executable=True):
        """What tidy says about CLEAN with `changes` (None: removed)."""
        with tempfile.TemporaryDirectory() as root:
            tree = {n: t for n, t in {**CLEAN, **changes}.items()
                    if t is not None}
            for name, text in tree.items():
                path = os.path.join(root, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as file:
                    file.write(text)
                if executable and text.startswith("#!"):
                    os.chmod(path, 0o755)
            return list(tidy.check(root, sorted(tree)))

    def expect(self, changes, *parts, **options):
        """Every line of the report, and there is one, holds all `parts`."""
        report = self.report(changes, **options)
        self.assertTrue(report, f"nothing reported for {changes}")
        for line in report:
            for part in parts:
                self.assertIn(part, line)

    def test_clean_tree_has_no_violation(self):
        self.assertEqual([], self.report({}))

    def test_every_wrong_include_is_reported(self):
        for name, included in ARROWS.items():
            for what in included:
                with self.subTest(name=name, what=what):
                    self.expect({name: f"#include {what}\n"}, name, what)

    def test_an_exception_reaches_no_further_and_must_be_needed(self):
        name = "client/transaction/once_in_transaction.cc"
        for what in BEYOND_THE_EXCEPTION:
            with self.subTest(what=what):
                self.expect({name: CLEAN[name] + f"#include {what}\n"},
                            name, what)
        self.expect({name: "\n"}, name, "needs none")

    def test_threads_outside_app_are_reported(self):
        for text in ("std::thread t(f);", "std::vector<std::jthread> ts_;",
                     "pthread_create(&t, 0, f, 0);", "auto f = std::async(g);",
                     "t.detach();"):
            with self.subTest(text=text):
                self.expect({"server/core/engine.cc": text + "\n"},
                            "server/core/engine.cc:1", "threads")

    def test_stale_allowance_of_threads_is_reported(self):
        tidy.THREADS_ALLOWED["server/core/gone.cc"] = "reason"
        self.addCleanup(tidy.THREADS_ALLOWED.pop, "server/core/gone.cc")
        self.expect({}, "server/core/gone.cc", "does not exist")

    def test_top_level_holds_what_it_may_and_all_of_it(self):
        self.expect({"docs/a.md": "x\n"}, "docs", "top level")
        self.expect({"Makefile": "x\n"}, "Makefile", "top level")
        self.expect({"README.md": None}, "README.md", "missing")

    def test_unregistered_files_are_reported(self):
        for name, text in (("tests/unit/c_test.cc", ""),
                           ("tests/unit/c_test.py", ""),
                           ("tests/unit/deep/c_test.sh", ""),
                           ("tests/unit/helper.cc", ""),
                           ("server/core/lane.cc", ""),
                           ("client/retry.cc", "")):
            with self.subTest(name=name):
                self.expect({name: text}, name, "no CMakeLists.txt names it")

    def test_a_name_in_a_comment_or_inside_another_does_not_register(self):
        self.expect({"tests/unit/c_test.cc": "",
                     "tests/unit/CMakeLists.txt":
                         CLEAN["tests/unit/CMakeLists.txt"]
                         + "# c_test.cc\nx(abc_test.cc other/c_test.cc)\n",
                     "tests/unit/abc_test.cc": ""},
                    "tests/unit/c_test.cc", "no CMakeLists.txt names it")

    def test_an_included_file_registers_and_another_does_not(self):
        listing = CLEAN["server/core/CMakeLists.txt"]
        lane = {"server/core/lane.cc": "",
                "server/core/more.cmake": "add_library(lane lane.cc)\n"}
        self.assertEqual([], self.report({
            **lane, "server/core/CMakeLists.txt":
                listing + "include(more.cmake)\n"}))
        self.expect(lane, "server/core/lane.cc", "no CMakeLists.txt names it")

    def test_a_folder_that_is_not_added_is_reported(self):
        self.expect({"server/extra/CMakeLists.txt": "\n"},
                    "server/extra/CMakeLists.txt", "does not add it")
        self.expect({"tests/unit/deep/CMakeLists.txt": "\n"},
                    "tests/unit/deep/CMakeLists.txt", "does not add it")
        self.expect({"tests/unit/deep/CMakeLists.txt": "# project(no)\n"},
                    "tests/unit/deep/CMakeLists.txt", "does not add it")
        self.assertEqual([], self.report({
            "tests/unit/deep/CMakeLists.txt": "project(of_its_own)\n"}))

    def test_leftovers_are_reported(self):
        for word in ("TO" "DO", "FIX" "ME", "X" "XX", "HA" "CK", "GTEST" "_SKIP()",
                     "DIS" "ABLED_A"):
            with self.subTest(word=word):
                self.expect({"client/client.cc": f"// {word} later\n"},
                            "client/client.cc:1", "left open")

    def test_long_files_and_lines_are_reported(self):
        self.expect({"client/client.cc": "\n" * 501}, "501 lines")
        self.expect({"client/client.cc": "x" * 81 + "\n"}, "80 columns")
        self.expect({"proto/a.proto": "x" * 101 + "\n"}, "100 columns")
        self.expect({"tests/unit/b_test.sh": "x" * 101 + "\n"}, "100 columns")

    def test_columns_are_characters_and_limits_belong_to_the_range(self):
        self.assertEqual([], self.report({
            "client/client.cc": "// " + "±" * 77 + "\n" + "\n" * 499,
            "proto/a.proto": "x" * 100 + "\n"}))

    def test_paths_of_one_machine_are_reported(self):
        for path in ("/wo" "rk/main/x", "/ro" "ot/.cache"):
            with self.subTest(path=path):
                self.expect({"README.md": f"see {path}\n"}, "README.md:1",
                            "path of one machine")

    def test_a_script_that_cannot_be_run_is_reported(self):
        self.expect({}, "tests/unit/b_test.sh", "not executable",
                    executable=False)

    def test_migrations_come_in_numbered_pairs(self):
        up, down = "migrations/000002_more.up.sql", \
            "migrations/000002_more.down.sql"
        self.assertEqual([], self.report({up: "", down: ""}))
        self.expect({up: ""}, "000002", "pair")
        self.expect({down: ""}, "000002", "pair")
        self.expect({up: "", "migrations/000002_other.down.sql": ""},
                    "000002", "pair")
        self.expect({"migrations/000003_a.up.sql": "",
                     "migrations/000003_a.down.sql": ""}, "000002", "missing")
        self.expect({"migrations/000001_other.up.sql": "",
                     "migrations/000001_other.down.sql": ""}, "taken")
        self.expect({"migrations/2_short.up.sql": ""}, "is not NNNNNN")

    def test_files_are_those_that_git_tracks_or_would(self):
        with tempfile.TemporaryDirectory() as root:
            for name in ("a.cc", "b.cc", "ignored/c.cc", "gone.cc"):
                os.makedirs(os.path.dirname(os.path.join(root, name)),
                            exist_ok=True)
                with open(os.path.join(root, name), "w") as file:
                    file.write("\n")
            with open(os.path.join(root, ".gitignore"), "w") as file:
                file.write("/ignored/\n")
            for arguments in (["init", "-q"], ["add", "a.cc", "gone.cc"]):
                subprocess.run(["git", "-C", root, *arguments], check=True)
            os.remove(os.path.join(root, "gone.cc"))
            self.assertEqual([".gitignore", "a.cc", "b.cc"],
                             tidy.list_files(root))


if __name__ == "__main__":
    unittest.main()
