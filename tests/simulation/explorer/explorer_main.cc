// explorer [NAME=NUMBER]..: one exploration with these bounds, and the way to the nearest state
// where something is wrong. Names: chunks, cancels, runs, crashes, unknown, transfers, faults,
// cuts, disorder, beside, losses, mutant (its place in explorer/mutant.h), quarantine (1: is
// wrong), states (at most so many).
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "tests/simulation/explorer/explorer.h"
#include "tests/simulation/explorer/symmetry.h"

namespace eplb::explorer {
namespace {

int PrintSymmetry(const SymmetryFigures& figures) {
  std::printf(
      "%s\n%zu states; %zu with every rank told apart, of %zu kinds; %zu kinds are missed\n",
      figures.violation.c_str(), size_t{figures.kept}, size_t{figures.told_apart},
      size_t{figures.orbits}, size_t{figures.missed});
  return figures.violation.empty() && figures.missed == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  std::map<std::string, int64_t> given = {
      {"chunks", 2},   {"cancels", 1},   {"launches", 1},   {"crashes", 1},
      {"unknown", 1},  {"transfers", 0}, {"faults", 2},     {"cuts", 1},
      {"disorder", 1}, {"mutant", 0},    {"quarantine", 0}, {"states", int64_t{1} << 31},
      {"beside", 0},   {"losses", 0},    {"replaced", 0},   {"apart", 0}};
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> part =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    if (given.count(part.first) == 0 || !absl::SimpleAtoi(part.second, &given[part.first])) {
      std::fprintf(stderr, "explorer: %s is not NAME=NUMBER with a name that it knows\n", argv[i]);
      return 2;
    }
  }
  const auto number = [&given](const char* name) { return static_cast<int>(given[name]); };
  const Bounds bounds = {.chunks = number("chunks"),
                         .cancels = number("cancels"),
                         .runs = number("launches"),
                         .beside = number("beside"),
                         .crashes = number("crashes"),
                         .losses = number("losses"),
                         .unknown = number("unknown"),
                         .transfers = number("transfers"),
                         .faults = number("faults"),
                         .replaced = number("replaced"),
                         .cuts = number("cuts") != 0,
                         .disorder = number("disorder") != 0};
  const auto mutant = static_cast<Mutant>(number("mutant"));
  if (number("apart") != 0) return PrintSymmetry(CompareWithRanksToldApart(bounds, mutant));
  const Figures figures = Explore({.bounds = bounds,
                                   .mutant = mutant,
                                   .max_states = static_cast<uint64_t>(given["states"]),
                                   .quarantine_is_wrong = number("quarantine") != 0,
                                   .verbose = true});
  for (const std::string& line : figures.trace) std::printf("%s\n", line.c_str());
  std::printf("%s: %s\n", figures.complete ? "complete" : "not complete",
              FiguresText(figures).c_str());
  return figures.violation.empty() ? 0 : 1;
}

}  // namespace
}  // namespace eplb::explorer

int main(int argc, char** argv) { return eplb::explorer::Main(argc, argv); }
