#include "client/cli/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "client/cli/text.h"

namespace eplb::cli {
namespace {

constexpr auto kQuiet = std::chrono::seconds(2);
constexpr auto kBetween = std::chrono::milliseconds(200);
constexpr char kClearLine[] = "\r\x1b[K";

}  // namespace

Progress::Progress(std::string what, int64_t total)
    : what_(std::move(what)),
      total_(total),
      shown_(isatty(STDERR_FILENO) != 0),
      next_(Clock::now() + kQuiet) {}

Progress::~Progress() {
  if (written_) (void)std::fputs(kClearLine, stderr);
}

void Progress::Reached(int64_t done) {
  if (!shown_ || Clock::now() < next_) return;
  next_ = Clock::now() + kBetween;
  written_ = true;
  (void)std::fprintf(stderr, "%seplbctl: %s %s of %s", kClearLine, what_.c_str(),
                     Grouped(done).c_str(), Grouped(total_).c_str());
}

}  // namespace eplb::cli
