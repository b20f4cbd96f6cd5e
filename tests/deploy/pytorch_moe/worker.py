"""The example's train.py with a balancer that only tests have: --migrate-every N moves experts to random slots.

With --forget NAME it leaves the tensors of that name where they are. With --each-step-from DIR it takes each step from
the checkpoint of another run before that step.
"""

import sys

import example  # finds the example's modules
import checkpoint
import settings
import train
from migrator import RandomMigrator


def take(name):
    """The value of a flag of this file, or ''; train.py does not see it."""
    if name not in sys.argv:
        return ""
    at = sys.argv.index(name)
    value = sys.argv[at + 1]
    del sys.argv[at:at + 2]
    return value


class EachStepFrom(train.Training):
    directory = ""

    def run_step(self):
        source = checkpoint.path_of(EachStepFrom.directory, self.next_step)
        if source.exists():  # there is none before the first step
            self.load(source)
        return super().run_step()


def main():
    migrate_every, forget = int(take("--migrate-every") or 0), take("--forget")
    EachStepFrom.directory = take("--each-step-from")
    if EachStepFrom.directory:
        train.Training = EachStepFrom
    parsed = settings.parse()
    balancer = RandomMigrator(migrate_every, seed=7, forget=forget) if migrate_every else train.balancer_of(parsed)
    return train.train(parsed, balancer)


if __name__ == "__main__":
    sys.exit(main())
