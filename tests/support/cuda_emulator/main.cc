// gtest's main, which repeats all tests with each seed of the emulator. EPLB_EMULATOR_SEED: only
// this one. EPLB_CUDA_MUTANT: with the kernels of this mutant, until the first test fails.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/cuda_emulator/emulator.h"
#include "tests/support/cuda_emulator/variants.h"

namespace eplb::cuda_emulator {
namespace {

class SeedOfIteration : public ::testing::EmptyTestEventListener {
 public:
  SeedOfIteration(uint64_t first, bool stops) : first_(first), stops_(stops) {}

  void OnTestIterationStart(const ::testing::UnitTest&, int iteration) override {
    seed_ = first_ + static_cast<uint64_t>(iteration);
  }
  // A test alone takes the same orders as among others.
  void OnTestStart(const ::testing::TestInfo&) override {
    Reset();
    SetSeed(seed_);
  }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (!test.result()->Failed()) return;
    std::printf("%s.%s failed with seed %d of the CUDA emulator\n", test.test_suite_name(),
                test.name(), static_cast<int>(seed_));
    std::fflush(stdout);
    if (stops_) std::_Exit(EXIT_FAILURE);
  }

 private:
  const uint64_t first_;
  const bool stops_;
  uint64_t seed_ = 0;
};

}  // namespace
}  // namespace eplb::cuda_emulator

int main(int argc, char** argv) {
  const char* const seed = std::getenv("EPLB_EMULATOR_SEED");
  const char* const mutant = std::getenv("EPLB_CUDA_MUTANT");
  // 65,536 blocks each, for what a queue has room for: fake_cuda_test and hosts' queues show it.
  GTEST_FLAG_SET(filter, "-*.AFullQueueRefusesUntilChecksumsAreTaken/*:*.AdditionsHoldNoRoom*");
  GTEST_FLAG_SET(repeat, seed == nullptr ? eplb::cuda_emulator::kNumSeeds : 1);
  ::testing::InitGoogleTest(&argc, argv);
  if (mutant != nullptr && !eplb::cuda_emulator::SelectVariant(mutant)) {
    std::fprintf(stderr, "there is no mutant %s\n", mutant);
    return 2;
  }
  ::testing::UnitTest::GetInstance()->listeners().Append(new eplb::cuda_emulator::SeedOfIteration(
      seed == nullptr ? 0 : std::strtoull(seed, nullptr, 10), mutant != nullptr));
  return RUN_ALL_TESTS();
}
