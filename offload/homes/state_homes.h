// StateHomes: the three places in which the state of a training lives below the device.
#pragma once

#include <terrace/offload/homes/gradient_store.h>
#include <terrace/offload/homes/param_home.h>
#include <terrace/offload/homes/record_store.h>

namespace terrace {

struct StateHomes {
  ParamHome& params;
  GradientStore& gradients;
  RecordStore& records;
};

}  // namespace terrace
