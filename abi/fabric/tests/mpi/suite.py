"""Runs modules of mpi4py's own tests on every rank of an MPI program. Each rank appends
"name<TAB>result<TAB>reason" for each test to a file of its own, and "ended" after the last one.

usage: suite.py TESTS-FOLDER RESULTS-FILE REGULAR-EXPRESSION LEFT-OUT

Runs the modules whose names match the expression, without the tests whose names contain LEFT-OUT.
"""
import sys
import unittest

import recorder

folder, results, modules, left_out = sys.argv[1:]
sys.path.insert(0, folder)
import main  # noqa: E402: of the tests' folder


class Results(recorder.Recorder):
    def file(self):
        from mpi4py import MPI

        return f"{results}.{MPI.COMM_WORLD.Get_rank()}"


class Runner(unittest.TextTestRunner):
    def run(self, test):
        result = super().run(test)
        with open(result.file(), "a", encoding="utf-8") as file:
            file.write("ended\n")
        return result


runner = Runner(resultclass=Results)
words = ["main.py", "-q", "--no-numpy", "-i", modules]
if left_out:
    words += ["-x", left_out]
main.main(module=None, argv=words, testRunner=runner)
