// Rules that a program broke and that NCCL itself would not report: each fails the process when it
// exits, unless a test took it.
#pragma once

#include <string>

namespace eplb::fake_nccl {

// threads: safe. Also a line on stderr.
void Blame(const std::string& what);
// Lines so far, which are forgotten.
std::string TakeViolations();

}  // namespace eplb::fake_nccl
