// The kernels as they are, and mutants of them, in one program: which of them a launcher of
// eplb::cuda calls.
#pragma once

#include <string>

namespace eplb::cuda_emulator {

using AnyFunction = void (*)();

// A variant's launcher. Its arguments are of types of the variant's namespace, which have the same
// text and so the same layout as those of eplb::cuda. variant: "" for the kernels as they are.
struct Registration {
  Registration(const char* variant, const char* launcher, AnyFunction function);
};

// From now on launchers are those of this variant where it has them. False: there is none.
bool SelectVariant(const std::string& variant);

AnyFunction FindLauncher(const std::string& launcher);

}  // namespace eplb::cuda_emulator
