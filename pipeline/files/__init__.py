"""Files of a set wherever they are: on a disk, or in an object store."""
