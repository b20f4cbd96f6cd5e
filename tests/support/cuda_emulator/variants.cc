#include "tests/support/cuda_emulator/variants.h"

#include <map>

namespace eplb::cuda_emulator {
namespace {

using Launchers = std::map<std::string, AnyFunction>;

// By variant; they register before main.
std::map<std::string, Launchers>& AllVariants() {
  static auto* const variants = new std::map<std::string, Launchers>();
  return *variants;
}

std::string& Selected() {
  static auto* const selected = new std::string();
  return *selected;
}

}  // namespace

Registration::Registration(const char* variant, const char* launcher, AnyFunction function) {
  AllVariants()[variant][launcher] = function;
}

bool SelectVariant(const std::string& variant) {
  Selected() = variant;
  return AllVariants().contains(variant);
}

AnyFunction FindLauncher(const std::string& launcher) {
  const Launchers& selected = AllVariants().at(Selected());
  const auto found = selected.find(launcher);
  return found != selected.end() ? found->second : AllVariants().at("").at(launcher);
}

}  // namespace eplb::cuda_emulator
