// simulation --seed N [--verbose]   one run, with what happens in it
// simulation --seeds A:B            the runs A to B; the first that is wrong is printed, exit 1
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "tests/simulation/simulation.h"

namespace eplb::simulation {
namespace {

constexpr int64_t kEnoughSeeds = 1000;  // for the counts to say something

int Usage() {
  std::fprintf(
      stderr,
      "usage: simulation --seed N [--verbose] | --seeds A:B\n"
      "  --seed N     one run; --verbose prints what happens in it\n"
      "  --seeds A:B  the runs A to B; with 1000 or more, what happened too seldom is told\n");
  return 2;
}

// Returns whether the run was right.
bool RunOne(uint64_t seed, bool verbose, std::map<std::string, int64_t>& counts) {
  const Outcome outcome = Simulate(seed, verbose);
  for (const auto& [name, count] : outcome.counts) counts[name] += count;
  if (outcome.violations.empty()) return true;
  for (const std::string& violation : outcome.violations) std::printf("%s\n", violation.c_str());
  std::printf("seed %llu is wrong; replay it with: simulation --seed %llu --verbose\n",
              static_cast<unsigned long long>(seed),   // NOLINT(google-runtime-int): for printf
              static_cast<unsigned long long>(seed));  // NOLINT(google-runtime-int): for printf
  return false;
}

int RunMany(uint64_t first, uint64_t last) {
  std::map<std::string, int64_t> counts;
  for (uint64_t seed = first; seed <= last; ++seed) {
    if (!RunOne(seed, false, counts)) return 1;
  }
  for (const auto& [name, count] : counts) {
    std::printf("%-32s %12lld\n", name.c_str(),
                static_cast<long long>(count));  // NOLINT(google-runtime-int): for printf
  }
  const auto seeds = static_cast<int64_t>(last - first + 1);
  if (seeds < kEnoughSeeds) return 0;
  const auto blind = FindBlindSpots(counts, seeds);
  for (const std::string& line : blind) std::printf("%s\n", line.c_str());
  return blind.empty() ? 0 : 1;
}

int Main(int argc, char** argv) {
  if (argc < 3) return Usage();
  const std::string flag = argv[1];
  uint64_t first = 0;
  uint64_t last = 0;
  if (flag == "--seed" && absl::SimpleAtoi(argv[2], &first)) {
    const bool verbose = argc == 4 && std::string(argv[3]) == "--verbose";
    if (argc != 3 && !verbose) return Usage();
    std::map<std::string, int64_t> counts;
    return RunOne(first, verbose, counts) ? 0 : 1;
  }
  const std::pair<std::string, std::string> range =
      absl::StrSplit(argv[2], absl::MaxSplits(':', 1));
  if (flag != "--seeds" || argc != 3 || !absl::SimpleAtoi(range.first, &first) ||
      !absl::SimpleAtoi(range.second, &last) || last < first) {
    return Usage();
  }
  return RunMany(first, last);
}

}  // namespace
}  // namespace eplb::simulation

int main(int argc, char** argv) { return eplb::simulation::Main(argc, argv); }
