#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bytes of a step that cross between two hosts of two ranks each. With shards inside a host (`parallel.shard`) the sums of
shards cross, and nothing else. Skipped (exit code 77) where namespaces are not allowed.

`plan --movements` counts the whole buffer of a movement. These tests multiply that by how often a buffer crosses with the
algorithms of Open MPI 4.1 (libnbc): sums go along a binomial tree, and in an all-gather each rank sends to every other.
"""

import re
import sys
import time

import support
import two_hosts

RANKS = 4
MICROBATCHES = 3
FEW, MANY = 1, 4  # steps of two runs, whose difference has no traffic of the start
# Headers and acknowledgements are 7 % of the bytes in packets of 1,514; the rest is for control.
ALLOWANCE = 1.08
HYBRID = ("parallel.shard=2",)
ACROSS = ("--map-by", "node")  # ranks that share are then on different hosts

# A factor is how often the buffer of a movement crosses, both ways and for all groups.
# Two groups hold copies. A rank of each sends its shard, and gets the sum; no algorithm sends less.
SUM_OF_COPIES = 2 * 2
# All ranks share. The second host sends its sum and gets half of the result; each rank sends its quarter to two ranks there.
SCATTER_TO_ALL, GATHER_FROM_ALL = 1 + 1 / 2, 4 * 2 / 4
# Two groups share across hosts. One rank of each sends its buffer and gets half of the sum; each rank sends its half.
SCATTER_ACROSS, GATHER_ACROSS = 2 * (1 + 1 / 2), 2 * 2 / 2


class HybridSharding(two_hosts.Hosts):
    """Four buckets; the global batch of 12 samples is three microbatches of a sample on each rank."""

    limit = 60
    settings = (*support.PLAIN, "model.width=128", "model.tie_embeddings=false", "parallel.bucket_mib=0.1",
                "train.microbatch=1", "checkpoint.every=0", "checkpoint.final=false")

    def planned(self, *settings):
        """Bytes of a step by kind and axis, those of the whole buffer, from `plan --movements`."""
        result = self.run_program("plan", "deck.yaml", "--ranks", RANKS, "--movements", *support.overrides(
            *self.settings, f"parallel.data={RANKS}", *settings))
        self.assertEqual((result.code, result.err), (0, ""))
        found = {}
        times = 0
        for line in result.out.splitlines():
            if movement := re.match(r"  \S.*, (?:once|(\d+) times) a step, starts ", line):
                times = int(movement[1] or 1)
            elif step := re.fullmatch(r"    (\w+) over (\w+), (\d+) bytes", line):
                found[step[1], step[2]] = found.get((step[1], step[2]), 0) + times * int(step[3])
        return found

    def sent(self):
        """Bytes that both hosts have sent to each other."""
        path = f"/sys/class/net/{self.links[0]}/statistics/tx_bytes"
        return sum(int(two_hosts.ip("netns", "exec", space, "cat", path).stdout) for space in self.spaces)

    def crossed(self, run, *settings, options=(), warned=None):
        """Bytes of a step. `warned`: ranks that a warning says to share shards across hosts."""
        totals = []
        for steps in (FEW, MANY):
            before = self.sent()
            process = self.start_on_both(f"{run}_{steps}", f"train.steps={steps}", *settings, lines=0, options=options)
            code, messages, _, err = self.end_of(process, time.monotonic())
            self.assertEqual((code, messages), (0, []), err)
            found = re.findall(r"ranks that share shards lie on several hosts \(ranks (.*?)\)", err)
            self.assertEqual(found, [warned] if warned else [], err)
            totals.append(self.sent() - before)
        return (totals[1] - totals[0]) / (MANY - FEW)

    def losses(self, run):
        """Of all steps."""
        return support.column(self.folder / run, "loss")

    def assert_crossed(self, found, expected):
        """The movements, and little beside them."""
        self.assertGreater(expected, 1e6)
        self.assertGreater(found, 0.99 * expected)
        self.assertLess(found, ALLOWANCE * expected)

    def test_sums_of_shards_alone_cross(self):
        for zero, times in ((1, 1), (2, MICROBATCHES)):
            with self.subTest(zero=zero):
                settings = (f"parallel.zero={zero}", *HYBRID)
                planned = self.planned(*settings)
                self.assertEqual(planned["reduce_scatter", "fold"], times * 2 * planned["all_reduce", "replica"])

                self.assert_crossed(self.crossed(f"zero{zero}", *settings),
                                    SUM_OF_COPIES * planned["all_reduce", "replica"])

    def test_the_place_of_shards_changes_bytes_and_no_bits(self):
        settings = ("parallel.zero=3", *HYBRID)
        planned = self.planned(*settings)
        self.train("alone", *self.settings, f"train.steps={MANY}", *settings, f"parallel.data={RANKS}", ranks=RANKS)

        inside = self.crossed("inside", *settings)
        across = self.crossed("across", *settings, options=ACROSS, warned="0, 1; 2, 3")

        self.assert_crossed(inside, SUM_OF_COPIES * planned["all_reduce", "replica"])
        self.assert_crossed(across, SCATTER_ACROSS * planned["reduce_scatter", "fold"] +
                            GATHER_ACROSS * planned["all_gather", "fold"])
        self.assertGreater(across, 5 * inside)
        for run in ("inside", "across"):
            self.assertEqual(self.losses(f"{run}_{MANY}"), self.losses("alone"))

    def test_all_movements_cross_if_all_ranks_share(self):
        settings = ("parallel.zero=3", "parallel.shard=0")
        planned = self.planned(*settings)
        self.assertEqual(set(planned), {("reduce_scatter", "fold"), ("all_gather", "fold")})
        hybrid = self.planned("parallel.zero=3", *HYBRID)

        found = self.crossed("all", *settings)

        self.assert_crossed(found, SCATTER_TO_ALL * planned["reduce_scatter", "fold"] +
                            GATHER_FROM_ALL * planned["all_gather", "fold"])
        self.assertGreater(found, 5 * SUM_OF_COPIES * hybrid["all_reduce", "replica"])


if __name__ == "__main__":
    if not two_hosts.is_allowed():
        print("no right to make network namespaces, or no ip (iproute2)")
        sys.exit(77)
    support.main()
