#include "tests/support/fake_nccl/group_log.h"

#include <cstdlib>
#include <fstream>
#include <mutex>

namespace eplb::fake_nccl {
namespace {

struct Log {
  std::mutex mutex;
  std::string text;
};

Log& TheLog() {
  static auto& log = *new Log();
  return log;
}

}  // namespace

void AddToLog(int32_t rank, const std::string& line) {
  const std::string whole = "rank=" + std::to_string(rank) + " " + line + "\n";
  const std::lock_guard<std::mutex> lock(TheLog().mutex);
  TheLog().text += whole;
  if (const char* folder = std::getenv("EPLB_FAKE_NCCL_LOG"); folder != nullptr) {
    std::ofstream(std::string(folder) + "/rank-" + std::to_string(rank) + ".log", std::ios::app)
        << whole;
  }
}

std::string LogOfProcess() {
  const std::lock_guard<std::mutex> lock(TheLog().mutex);
  return TheLog().text;
}

void ClearLog() {
  const std::lock_guard<std::mutex> lock(TheLog().mutex);
  TheLog().text.clear();
}

}  // namespace eplb::fake_nccl
