"""Runs one module of rdma-core's own Python tests and appends "name<TAB>result<TAB>reason" for each test to a file.

usage: run.py TESTS-FOLDER MODULE RESULTS-FILE
"""
import importlib
import ipaddress
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


def host_address(test, dev, port, index):
    """Stores the IPv4 address of a GID. The tests would use that of the device's network interface, which ours lacks."""
    gid = importlib.import_module("pyverbs.device").Context(name=dev).query_gid(port, index).gid
    address = ipaddress.IPv6Address(gid).ipv4_mapped
    test.args.append([dev, port, index, address and str(address), None])


if module == "test_rdmacm":
    importlib.import_module("base").RDMATestCase._get_ip_mac = host_address
    importlib.import_module("tests.base").RDMATestCase._get_ip_mac = host_address
suite = unittest.defaultTestLoader.loadTestsFromModule(loaded)
unittest.TextTestRunner(resultclass=Results, verbosity=2).run(suite)
