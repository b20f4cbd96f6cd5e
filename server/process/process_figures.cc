#include "server/process/process_figures.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

namespace eplb {

namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

// The entries of a folder without `.` and `..`.
int64_t CountEntries(const char* path) {
  struct Close {
    void operator()(DIR* folder) const noexcept { (void)closedir(folder); }
  };
  const std::unique_ptr<DIR, Close> folder(opendir(path));
  if (folder == nullptr) return 0;
  int64_t count = -2;
  while (readdir(folder.get()) != nullptr) ++count;  // NOLINT(concurrency-mt-unsafe): own folder
  return count;
}

// Fields of /proc/self/stat, counted from 1 as in proc(5), after the name, which may hold anything.
constexpr int kThreadsField = 20;
constexpr int kStartField = 22;
constexpr int kResidentField = 24;

// Seconds since 1970 at which the machine started.
double BootSeconds() {
  std::ifstream file("/proc/stat");
  std::string word;
  double seconds = 0;
  while (file >> word) {
    if (word == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

}  // namespace

ProcessFigures ReadProcessFigures() {
  ProcessFigures figures;
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    figures.cpu_seconds = Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
  }
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    figures.max_descriptors = static_cast<int64_t>(descriptors.rlim_cur);
  }
  figures.open_descriptors = CountEntries("/proc/self/fd");
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return figures;
  std::istringstream fields(text.substr(name_end + 1));
  std::string word;
  for (int field = 3; fields >> word && field <= kResidentField; ++field) {
    const int64_t number = std::strtoll(word.c_str(), nullptr, 10);
    if (field == kThreadsField) figures.threads = number;
    if (field == kStartField) {
      const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
      figures.start_unix_seconds = BootSeconds() + static_cast<double>(number) / ticks;
    }
    if (field == kResidentField) figures.resident_bytes = number * sysconf(_SC_PAGESIZE);
  }
  return figures;
}

}  // namespace eplb
