"""Runs one module of rdma-core's own Python tests and appends "name<TAB>result<TAB>reason" for each test to a file.

usage: run.py TESTS-FOLDER MODULE RESULTS-FILE
"""
import importlib
import os
import sys
import unittest

import recorder


class Results(recorder.Recorder):
    def file(self):
        return results


folder, module, results = sys.argv[1:]
sys.path[:0] = [os.path.dirname(folder), folder]
sys.argv[1:] = []
loaded = importlib.import_module("tests." + module)
importlib.import_module("args_parser").parser.parse_args()
suite = unittest.defaultTestLoader.loadTestsFromModule(loaded)
unittest.TextTestRunner(resultclass=Results, verbosity=2).run(suite)
