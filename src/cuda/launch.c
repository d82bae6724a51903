/* Launches kernels with clusters and cooperative attributes. It knows the layout of the driver's
 * launch configuration. */
#include "cuda/cuda.h"

#include "core/error.h"

/* CUlaunchAttribute: an id, padded to 8 bytes, and a 64-byte union. */
struct launch_attribute {
  int id, padding;
  union {
    unsigned char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int cooperative;
  } value;
};

/* CUlaunchConfig */
struct cuda_launch_config {
  unsigned grid[3], block[3], shared_bytes;
  cuda_stream stream;
  struct launch_attribute *attributes;
  unsigned attribute_count;
};

enum { COOPERATIVE = 2, CLUSTER_DIMENSION = 4 }; /* CUlaunchAttributeID */

static struct cuda_launch_config configure(const struct cuda_launch *launch,
                                           struct launch_attribute attributes[2]) {
  struct cuda_launch_config config = {.grid = {launch->ctas, 1, 1},
                                      .block = {launch->threads, 1, 1},
                                      .shared_bytes = launch->shared_bytes,
                                      .stream = launch->stream,
                                      .attributes = attributes};
  if (launch->cluster > 1) {
    struct launch_attribute *a = &attributes[config.attribute_count++];
    *a = (struct launch_attribute){.id = CLUSTER_DIMENSION};
    a->value.cluster.x = launch->cluster;
    a->value.cluster.y = a->value.cluster.z = 1;
  }
  if (launch->cooperative) {
    struct launch_attribute *a = &attributes[config.attribute_count++];
    *a = (struct launch_attribute){.id = COOPERATIVE};
    a->value.cooperative = 1;
  }
  return config;
}

weft_status weft__cuda_launch(const struct cuda_kernel *kernel, const struct cuda_launch *launch,
                              void *arguments) {
  const struct cuda_driver *driver = weft__cuda_driver();
  if (!driver) return weft__fail(WEFT_ERR_UNSUPPORTED, "%s", weft__cuda_driver_why_off());
  if (launch->ctas == 0 || launch->cluster == 0 || launch->ctas % launch->cluster)
    return weft__fail(WEFT_ERR_ARGUMENT, "launch of %u CTAs in clusters of %u", launch->ctas,
                      launch->cluster);
  struct launch_attribute attributes[2];
  const struct cuda_launch_config config = configure(launch, attributes);
  void *parameters[] = {arguments};
  return weft__cuda_check(driver->cuLaunchKernelEx(&config, kernel->function, parameters, NULL),
                          "cuLaunchKernelEx");
}

weft_status weft__cuda_max_clusters(const struct cuda_kernel *kernel,
                                    const struct cuda_launch *launch, int *clusters) {
  const struct cuda_driver *driver = weft__cuda_driver();
  if (!driver) return weft__fail(WEFT_ERR_UNSUPPORTED, "%s", weft__cuda_driver_why_off());
  struct launch_attribute attributes[2];
  const struct cuda_launch_config config = configure(launch, attributes);
  return weft__cuda_check(driver->cuOccupancyMaxActiveClusters(clusters, kernel->function, &config),
                          "cuOccupancyMaxActiveClusters");
}
