// What stands below the rows of step 1 is two modules.
import("/studio/page/phrases.mjs");
import("/studio/page/upload.mjs");
