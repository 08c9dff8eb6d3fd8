#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A save in which every call on a file or folder fails, is cut short or is the last one, in turn, on every rank: what
is loaded later is the old or the new state, bit for bit."""

import concurrent.futures
import json

import fault_support
import support

OLD, NEW = 4, 6
SETTINGS = (*fault_support.PLAIN, "checkpoint.every=2", "checkpoint.keep=2", "train.steps=6", "model.layers=1")
AT_ONCE = 2  # jobs
RANKS = 2
RESUMED_EVERY = 8  # of the faults, one in so many is followed by a resume to the end


class Sweep(fault_support.FaultCase):
    """Steps 2 and 4 are saved; the job with the fault trains 5 and 6, saves 6 and removes 2."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("whole", *SETTINGS, "checkpoint.keep=all", ranks=RANKS)
        cls.train("base", *SETTINGS, ranks=RANKS, options=("--stop-after", OLD))
        cls.whole = cls.folder / "whole/checkpoints"

    def strike(self, rank, number, action, point="*"):
        """One job; whether there was such a call, its result and its directory."""
        name = f"{action}_{rank}_{number}"
        self.copy_to("base", name)
        fault = f"{point}@{name}/checkpoints#{number}:{rank}:*:{action}"
        result = self.start_job(name, *SETTINGS, ranks=RANKS, fault=fault).result(60)
        return f"fault on purpose ({fault})" in result.err, result, name

    def check(self, result, name, codes):
        """What one fault has left."""
        folder = self.folder / name / "checkpoints"
        self.assertIn(result.code, codes, result.err)
        self.assertNotIn("fault of the program", result.err)
        found = fault_support.steps(folder)
        self.assertIn(found, ([2, OLD], [2, OLD, NEW], [OLD, NEW]), result.err)
        self.assert_equal_steps(folder, self.whole, found)
        verified = self.verify(folder)
        self.assertEqual(verified.code, 0, verified.err)
        return found

    def check_resume(self, name, saves):
        """Goes on to the end, and to the bits of a run that nothing happened to. `saves`: there is something left to
        do, and a save removes what was left behind."""
        result = self.start_job(name, *SETTINGS, ranks=RANKS).result(60)
        self.assertEqual(result.code, 0, result.err)
        folder = self.folder / name
        self.assert_equal_steps(folder / "checkpoints", self.whole, [OLD, NEW])
        if saves:
            self.assertEqual(fault_support.unfinished(folder / "checkpoints"), [])
        for key in ("step", "loss", "grad_norm"):
            self.assertEqual(support.column(folder, key), support.column(self.folder / "whole", key), key)

    def sweep(self, action, codes, point="*"):
        """All calls of all ranks; the numbers of calls, and which steps were left how often."""
        calls, left = {}, {}
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for rank in range(RANKS):
                number, ended = 1, False
                while not ended:
                    numbers = range(number, number + 2 * AT_ONCE)
                    number = numbers.stop
                    for struck, result, name in pool.map(lambda n: self.strike(rank, n, action, point), numbers):
                        if not struck:
                            self.assertEqual(result.code, 0, result.err)
                            ended = True
                            continue
                        with self.subTest(name):
                            found = self.check(result, name, codes)
                            calls[rank] = calls.get(rank, 0) + 1
                            left[str(found)] = left.get(str(found), 0) + 1
                            if sum(calls.values()) % RESUMED_EVERY == 1:
                                self.check_resume(name, NEW not in found)
        print(json.dumps({"action": action, "calls": calls, "left": left}))
        return calls, left


class Fault24(Sweep):
    """A full disk at every call; a write that is cut short is completed."""

    def test_no_space(self):
        calls, left = self.sweep("no_space", (0, 5))

        self.assertGreater(calls[0], 15)
        self.assertGreater(calls[1], 3)
        self.assertGreater(len(left), 1)

    def test_short_writes(self):
        calls, left = self.sweep("short_write", (0,), "file.write")

        self.assertGreater(calls[0], 2)
        self.assertEqual(set(left), {str([OLD, NEW])})


class Fault25(Sweep):
    """EIO at every call."""

    def test_error(self):
        calls, left = self.sweep("error", (0, 5))

        self.assertGreater(calls[0], 15)
        self.assertGreater(calls[1], 3)
        self.assertGreater(len(left), 1)


class Fault31(Sweep):
    """SIGKILL at every call."""

    def test_kill(self):
        calls, left = self.sweep("kill", (137,))

        self.assertGreater(calls[0], 15)
        self.assertGreater(calls[1], 3)
        self.assertIn(str([2, OLD]), left)
        self.assertIn(str([2, OLD, NEW]), left)


if __name__ == "__main__":
    support.main()
