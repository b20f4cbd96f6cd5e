#include "server/process/begin_anew.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"

namespace eplb {
namespace {

// Variable with the number of the text's descriptor, or kNoText.
constexpr char kInherited[] = "EPLBD_INHERITED_TEXT";
constexpr char kNoText[] = "none";
constexpr unsigned kSealAgainstRunning = 8;  // MFD_NOEXEC_SEAL, which older headers lack

// Returns the variables of this process, with `text` as kInherited.
std::vector<std::string> EnvironmentWith(std::optional<int> text) {
  const std::string own = absl::StrCat(kInherited, "=");
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with(own)) variables.emplace_back(*entry);
  }
  variables.push_back(absl::StrCat(own, text ? std::to_string(*text) : kNoText));
  return variables;
}

}  // namespace

bool HasBegunAnew() { return std::getenv(kInherited) != nullptr; }

absl::StatusOr<std::optional<std::string>> InheritedText() {
  const char* const given = std::getenv(kInherited);
  const std::string value = given == nullptr ? kNoText : given;
  if (value == kNoText) return std::nullopt;
  int descriptor = -1;
  if (!absl::SimpleAtoi(value, &descriptor)) descriptor = -1;
  struct stat state {};
  if (fstat(descriptor, &state) != 0) {
    return Unavailable(kInherited, ": ", std::generic_category().message(errno));
  }
  std::string text(static_cast<size_t>(state.st_size), '\0');
  const ssize_t size = pread(descriptor, text.data(), text.size(), 0);
  (void)close(descriptor);
  if (size == state.st_size) return text;
  return Unavailable(kInherited, ": ", size, " of ", text.size(), " bytes can be read");
}

absl::StatusOr<int> HoldText(const std::string& text) {
  int descriptor = memfd_create("text", MFD_CLOEXEC | kSealAgainstRunning);
  // A kernel before 6.3 does not know the seal.
  if (descriptor < 0 && errno == EINVAL) descriptor = memfd_create("text", MFD_CLOEXEC);
  if (descriptor >= 0 && write(descriptor, text.data(), text.size()) == std::ssize(text)) {
    return descriptor;
  }
  const std::string why = std::generic_category().message(errno);
  if (descriptor >= 0) (void)close(descriptor);
  return Unavailable(why);
}

void BeginAnew(char** arguments, std::optional<int> text) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    if (descriptor > STDERR_FILENO) (void)fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  }
  if (text) (void)fcntl(*text, F_SETFD, 0);
  std::vector<std::string> variables = EnvironmentWith(text);
  std::vector<char*> environment;
  environment.reserve(variables.size() + 1);
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  (void)execve("/proc/self/exe", arguments, environment.data());
}

}  // namespace eplb
