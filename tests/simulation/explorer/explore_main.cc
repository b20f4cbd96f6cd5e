#include <cstdio>
#include <cstdlib>
#include <string>
#include "tests/simulation/explorer/explorer.h"
using namespace eplb::explorer;
int main(int argc, char** argv) {
  Options o; o.verbose = true;
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string k = argv[i]; int v = atoi(argv[i + 1]);
    if (k == "chunks") o.bounds.chunks = v; if (k == "retracts") o.bounds.retracts = v;
    if (k == "launches") o.bounds.launches = v; if (k == "crashes") o.bounds.crashes = v;
    if (k == "unknown") o.bounds.unknown = v; if (k == "faults") o.bounds.faults = v;
    if (k == "transfers") o.bounds.transfers = v; if (k == "cuts") o.bounds.cuts = v;
    if (k == "q") o.quarantine_is_wrong = v; if (k == "mutant") o.mutant = (Mutant)v; if (k == "max") o.max_states = v;
  }
  Figures f = Explore(o);
  for (auto& l : f.trace) printf("%s\n", l.c_str());
  printf("states %lu steps %lu settled %lu quarantined %lu logs %lu depth %lu core %zu rank %zu complete %d\n", f.states, f.steps, f.settled, f.quarantined, f.logs_checked, f.depth, f.core_states, f.rank_states, f.complete);
}
