// How tests of the three page units read a page: a document by its path. One header, because a
// document's path is stated once.
#pragma once

#include <string>

#include "client/cli/page_documents.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {

// The path of a document of the job "demo".
struct Page {
  PageJson documents;
  PageJson At(const std::string& path) const {
    return documents["paths"].value("api/v1/jobs/demo" + path, PageJson());
  }
};

}  // namespace eplb::cli
