"""Runs modules of mpi4py's own tests on every rank of an MPI program. Each rank appends
"name<TAB>result<TAB>reason" for each test to a file of its own.

usage: suite.py TESTS-FOLDER RESULTS-FILE REGULAR-EXPRESSION LEFT-OUT

The expression says which modules run; tests with LEFT-OUT in their names do not.
"""
import sys
import unittest

folder, results, modules, left_out = sys.argv[1:]
sys.path.insert(0, folder)
import main  # noqa: E402: of the tests' folder


class Recorder(unittest.TextTestResult):
    def put(self, test, result, reason=""):
        from mpi4py import MPI

        name = ".".join(test.id().split(" ")[0].split(".")[-3:])
        reason = " ".join(str(reason).split())
        with open(f"{results}.{MPI.COMM_WORLD.Get_rank()}", "a", encoding="utf-8") as file:
            file.write(f"{name}\t{result}\t{reason}\n")

    def addSuccess(self, test):
        super().addSuccess(test)
        self.put(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.put(test, "skip", reason)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.put(test, "FAIL", error[1])

    def addError(self, test, error):
        super().addError(test, error)
        self.put(test, "FAIL", error[1])

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.put(test, "FAIL", error[1])


runner = unittest.TextTestRunner(resultclass=Recorder)
words = ["main.py", "-q", "--no-numpy", "-i", modules]
if left_out:
    words += ["-x", left_out]
main.main(module=None, argv=words, testRunner=runner)
