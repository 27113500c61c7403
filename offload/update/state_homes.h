// StateHomes: the places in which the state of a training lives below the device, and what is known of it.
#pragma once

#include <terrace/offload/gradients/gradient_store.h>
#include <terrace/offload/landing/gradient_runs.h>
#include <terrace/offload/parameters/param_home.h>
#include <terrace/offload/records/record_store.h>
#include <terrace/offload/records/tensor_steps.h>

namespace terrace {

struct StateHomes {
  ParamHome& params;
  GradientStore& gradients;
  RecordStore& records;
  const GradientRuns& runs;
  TensorSteps& steps;
};

}  // namespace terrace
