"""Appends a line "name<TAB>result<TAB>reason" to a file for each unit test."""
import unittest


class Recorder(unittest.TextTestResult):
    """A subclass defines `file`, which returns the path of the file to append to."""

    def file(self):
        raise NotImplementedError

    def put(self, test, result, reason=""):
        name = ".".join(test.id().split(" ")[0].split(".")[-3:])
        reason = " ".join(str(reason).split())
        with open(self.file(), "a", encoding="utf-8") as file:
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
