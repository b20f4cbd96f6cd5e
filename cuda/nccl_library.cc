#include "cuda/nccl_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb::cuda {

namespace {

constexpr char kFileName[] = "libnccl.so.2";
constexpr char kPathVariable[] = "EPLB_NCCL_PATH";
constexpr int kOldestVersion = 21800;
constexpr int kOldestWithRegistration = 21900;
constexpr int kMajorVersion = 2;

// Codes up to 2.8 are major * 1000 + minor * 100 + patch, later ones major * 10000.
std::string VersionText(int version) {
  const int major_unit = version < 10000 ? 1000 : 10000;
  return absl::StrCat(version / major_unit, ".", version % major_unit / 100, ".", version % 100);
}

struct Handle {
  void* library = nullptr;
  std::string why_not;
};

Handle Open(const std::string& path, int flags) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
  if (library != nullptr) return {library, ""};
  const char* error = dlerror();
  return {nullptr, error != nullptr ? error : absl::StrCat(path, ": is not loaded")};
}

// A framework may have loaded its copy under a name that the loader would not search for.
int KeepPathOfNccl(dl_phdr_info* info, size_t /*size*/, void* path) {
  const std::string name = std::filesystem::path(info->dlpi_name).filename().string();
  if (!absl::StartsWith(name, "libnccl.so")) return 0;
  *static_cast<std::string*>(path) = info->dlpi_name;
  return 1;
}

Handle OpenLoaded() {
  Handle by_name = Open(kFileName, RTLD_NOLOAD);
  if (by_name.library != nullptr) return by_name;
  std::string path;
  dl_iterate_phdr(&KeepPathOfNccl, &path);
  return path.empty() ? Handle{nullptr, "the process has loaded none"} : Open(path, RTLD_NOLOAD);
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Returns the paths of NVIDIA's wheel below the folders that Python would search, in that order.
std::vector<std::string> PathsInPython() {
  std::vector<std::filesystem::path> folders;
  for (const absl::string_view folder : absl::StrSplit(Variable("PYTHONPATH"), ':')) {
    if (!folder.empty()) folders.emplace_back(std::string(folder));
  }
  if (const std::string environment = Variable("VIRTUAL_ENV"); !environment.empty()) {
    std::error_code ignored;  // a folder that is not there holds nothing
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(environment) / "lib", ignored)) {
      folders.push_back(entry.path() / "site-packages");
    }
  }
  std::vector<std::string> paths;
  for (const std::filesystem::path& folder : folders) {
    const std::filesystem::path path = folder / "nvidia" / "nccl" / "lib" / kFileName;
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) paths.push_back(path.string());
  }
  return paths;
}

template <class Function>
absl::Status Bind(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return absl::OkStatus();
  return FailedPrecondition("has no symbol ", name);
}

absl::Status BindAll(void* library, NcclLibrary::Functions& f) {
  EPLB_RETURN_IF_ERROR(Bind(library, "ncclGetVersion", f.ncclGetVersion));
  EPLB_RETURN_IF_ERROR(Bind(library, "ncclGetUniqueId", f.ncclGetUniqueId));
  EPLB_RETURN_IF_ERROR(Bind(library, "ncclGetErrorString", f.ncclGetErrorString));
  EPLB_RETURN_IF_ERROR(Bind(library, "ncclGetLastError", f.ncclGetLastError));
  EPLB_RETURN_IF_ERROR(Bind(library, "ncclCommInitRankConfig", f.ncclCommInitRankConfig));
  EPLB_RETURN_IF_ERROR(Bind(library, "ncclCommGetAsyncError", f.ncclCommGetAsyncError));
  EPLB_RETURN_IF_ERROR(Bind(library, "ncclCommAbort", f.ncclCommAbort));
  EPLB_RETURN_IF_ERROR(Bind(library, "ncclGroupStart", f.ncclGroupStart));
  EPLB_RETURN_IF_ERROR(Bind(library, "ncclGroupEnd", f.ncclGroupEnd));
  EPLB_RETURN_IF_ERROR(Bind(library, "ncclSend", f.ncclSend));
  return Bind(library, "ncclRecv", f.ncclRecv);
}

// Memory that can be registered with a communicator: left out where a part is missing.
void BindRegistration(void* library, int version, NcclLibrary::Functions& f) {
  if (version < kOldestWithRegistration) return;
  NcclLibrary::Functions all = f;
  if (!Bind(library, "ncclMemAlloc", all.ncclMemAlloc).ok() ||
      !Bind(library, "ncclMemFree", all.ncclMemFree).ok() ||
      !Bind(library, "ncclCommRegister", all.ncclCommRegister).ok() ||
      !Bind(library, "ncclCommDeregister", all.ncclCommDeregister).ok()) {
    return;
  }
  f = all;
}

// The version, of one that will do.
absl::StatusOr<int> BindAndCheck(void* library, NcclLibrary::Functions& functions) {
  EPLB_RETURN_IF_ERROR(BindAll(library, functions));
  int version = 0;
  if (const ncclResult_t result = functions.ncclGetVersion(&version); result != ncclSuccess) {
    return FailedPrecondition("ncclGetVersion failed: ", functions.ncclGetErrorString(result));
  }
  if (version < kOldestVersion) {
    return FailedPrecondition("is version ", VersionText(version), ", older than ",
                              VersionText(kOldestVersion));
  }
  if (version / 10000 > kMajorVersion) {
    return FailedPrecondition("is version ", VersionText(version),
                              ", and its interface is only known up to version ", kMajorVersion);
  }
  BindRegistration(library, version, functions);
  return version;
}

std::string PathOf(void* library) {
  const link_map* map = nullptr;
  return dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr ? map->l_name : "";
}

}  // namespace

// One object for each library of the process: the same handle gives the same object again, so what
// is kept for ever is bounded by the number of files.
struct NcclLoader {
  std::mutex mutex;
  std::map<void*, std::unique_ptr<const NcclLibrary>> libraries;  // guarded by mutex

  static NcclLoader& Instance() {
    static auto& instance = *new NcclLoader();  // outlives the threads that NCCL leaves behind
    return instance;
  }

  absl::StatusOr<const NcclLibrary*> Take(void* handle) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto known = libraries.find(handle); known != libraries.end()) {
      dlclose(handle);  // only the count of this dlopen
      return known->second.get();
    }
    auto functions = std::make_shared<NcclLibrary::Functions>();
    const absl::StatusOr<int> version = BindAndCheck(handle, *functions);
    if (!version.ok()) {
      const std::string path = PathOf(handle);
      dlclose(handle);
      return FailedPrecondition(path, " ", version.status().message());
    }
    auto library = std::unique_ptr<NcclLibrary>(new NcclLibrary());
    library->functions_ = std::move(functions);
    library->path_ = PathOf(handle);
    library->version_ = *version;
    return libraries.emplace(handle, std::move(library)).first->second.get();
  }
};

absl::StatusOr<const NcclLibrary*> NcclLibrary::Load(const std::string& path) {
  std::vector<std::string> tried;
  const NcclLibrary* found = nullptr;
  const auto done = [&](std::string_view where, const Handle& handle) {
    std::string why_not = handle.why_not;
    if (handle.library != nullptr) {
      const auto library = NcclLoader::Instance().Take(handle.library);
      if (library.ok()) found = *library;
      why_not = std::string(library.status().message());
    }
    if (found == nullptr) tried.push_back(absl::StrCat(std::string(where), ": ", why_not));
    return found != nullptr;
  };
  if (!path.empty()) {
    if (done("the given path", Open(path, 0))) return found;
  } else {
    if (done("loaded already", OpenLoaded())) return found;
    if (const std::string named = Variable(kPathVariable); !named.empty()) {
      if (done(kPathVariable, Open(named, 0))) return found;
    } else {
      if (done("the loader", Open(kFileName, 0))) return found;
      for (const std::string& in_python : PathsInPython()) {
        if (done("Python", Open(in_python, 0))) return found;
      }
    }
  }
  std::string text = absl::StrCat("no NCCL: ", absl::StrJoin(tried, "; "));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return FailedPrecondition(text);
}

std::string NcclLibrary::note() const {
  const std::string named = Variable(kPathVariable);
  std::error_code ignored;  // a file that is not there is not the one in use
  if (named.empty() || std::filesystem::equivalent(named, path_, ignored)) return "";
  return absl::StrCat(kPathVariable, "=", named, " is not used: the process has loaded ", path_,
                      " already");
}

std::string NcclLibrary::version_text() const { return VersionText(version_); }

}  // namespace eplb::cuda
