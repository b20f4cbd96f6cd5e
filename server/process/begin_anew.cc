#include "server/process/begin_anew.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/files.h"

namespace eplb {
namespace {

// Variable with the number of the text's descriptor.
constexpr char kInherited[] = "EPLBD_INHERITED_TEXT";

// The variables of this process, with that of `text` alone as kInherited.
std::vector<std::string> EnvironmentWith(std::optional<int> text) {
  const std::string own = absl::StrCat(kInherited, "=");
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with(own)) variables.emplace_back(*entry);
  }
  if (text) variables.push_back(absl::StrCat(own, *text));
  return variables;
}

}  // namespace

bool HasBegunAnew() { return std::getenv(kInherited) != nullptr; }

absl::StatusOr<std::string> InheritedText() {
  const std::string descriptor = std::getenv(kInherited);
  absl::StatusOr<std::string> text = ReadRegularFile(absl::StrCat("/proc/self/fd/", descriptor));
  (void)close(std::atoi(descriptor.c_str()));
  return text;
}

absl::StatusOr<int> HoldText(const std::string& text) {
  const int descriptor = memfd_create("text", MFD_CLOEXEC);
  if (descriptor >= 0 && write(descriptor, text.data(), text.size()) == std::ssize(text)) {
    return descriptor;
  }
  const std::string why = std::generic_category().message(errno);
  if (descriptor >= 0) (void)close(descriptor);
  return absl::UnavailableError(why);
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
