// A folder that nothing else uses, gone with the test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace eplb {

class Folder {
 public:
  Folder() {
    static std::atomic<int> count{0};
    path_ = std::filesystem::path(::testing::TempDir()) /
            absl::StrCat("eplb-store-", getpid(), "-", count++);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string File(const std::string& name) const { return (path_ / name).string(); }
  // Names that begin so.
  std::vector<std::string> Matching(const std::string& prefix) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind(prefix, 0) == 0) names.push_back(name);
    }
    return names;
  }

 private:
  std::filesystem::path path_;
};

// A test with the path of a database that is not there yet.
class DatabaseTest : public ::testing::Test {
 protected:
  const Folder folder_;
  const std::string path_ = folder_.File("eplb.db");
};

}  // namespace eplb
