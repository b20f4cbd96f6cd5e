#include "tests/support/fake_nccl/violations.h"

#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <utility>

#include "tests/support/fake_nccl/fake_nccl.h"

namespace eplb::fake_nccl {
namespace {

struct Violations {
  std::mutex mutex;
  std::string lines;
};

Violations& TheViolations() {
  static auto& violations = *new Violations();
  return violations;
}

void EndWithViolations() {
  if (!TakeViolations().empty()) _exit(kFakeNcclViolationExit);
}

}  // namespace

void Blame(const std::string& what) {
  static const int registered = std::atexit(&EndWithViolations);
  (void)registered;
  std::fprintf(stderr, "the stand-in for NCCL: %s\n", what.c_str());
  const std::lock_guard<std::mutex> lock(TheViolations().mutex);
  TheViolations().lines += what + "\n";
}

std::string TakeViolations() {
  const std::lock_guard<std::mutex> lock(TheViolations().mutex);
  return std::exchange(TheViolations().lines, "");
}

}  // namespace eplb::fake_nccl
