"""python -m eplb.convert: eplbctl reads what torch.save of this release writes, whatever the types and strides."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch


class ConvertTest(unittest.TestCase):
    def test_types_views_and_extras_of_tensors(self):
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-convert-")))
        dump, out = directory / "dump.pt", directory / "out.jsonl"
        whole = torch.arange(100)
        counts = whole[:48].view(3, 2, 8)[:, :, ::2]
        types = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16, torch.float32, torch.float64)
        for tensor in (whole[10:34].view(3, 2, 4), counts, whole[:24].view(4, 2, 3).permute(2, 1, 0), *(counts.to(each) for each in types)):
            for saved in (tensor, {"logical_count": tensor, "rank": 0, "rates": [None, 0.5, (torch.rand(3), "b")]}):
                torch.save(saved, dump)
                done = subprocess.run([sys.executable, "-B", "-m", "eplb.convert", dump, out], capture_output=True, text=True, timeout=60,
                                      env={**os.environ, "PATH": os.environ["EPLB_BIN"]})
                self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
                self.assertEqual([json.loads(line)["load"] for line in out.read_text().splitlines()], tensor.long().tolist(), tensor.dtype)


if __name__ == "__main__":
    unittest.main()
