"""Runs one module of rdma-core's own Python tests and appends "name<TAB>result<TAB>reason" for each test to a file.

usage: run.py TESTS-FOLDER MODULE RESULTS-FILE
"""
import importlib
import os
import sys
import unittest


class Recorder(unittest.TextTestResult):
    def put(self, test, result, reason=""):
        name = ".".join(test.id().split(".")[-3:])
        reason = " ".join(str(reason).split())
        with open(results, "a", encoding="utf-8") as file:
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


folder, module, results = sys.argv[1:]
sys.path[:0] = [os.path.dirname(folder), folder]
sys.argv[1:] = []
loaded = importlib.import_module("tests." + module)
importlib.import_module("args_parser").parser.parse_args()
suite = unittest.defaultTestLoader.loadTestsFromModule(loaded)
unittest.TextTestRunner(resultclass=Recorder, verbosity=2).run(suite)
